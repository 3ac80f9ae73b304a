"""Who imports torch's compiler: programs of the host as ever, servers not before they use it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import vllm_cpu_backend

# torch calls the entry point in the middle of the host's first import, as this script does.
SCRIPT = """
import importlib, json, sys
sys.argv = sys.argv[1:]
import torch
import cpu_backend
cpu_backend.torch_imported()
compile = torch.compile
import vllm.entrypoints.cli.main, vllm.entrypoints.cli.serve
import vllm.v1.engine.core, vllm.model_executor.models.llama, cpu_backend.worker.worker
from vllm.compilation import decorators
from vllm.v1.worker.gpu.metrics import logits

@torch.compile(dynamic=True)
def doubled(x): return 2 * x

said = {"imported": "torch._dynamo.utils" in sys.modules, "doubled": doubled(21)}
said["same"] = torch.compile is compile
torch._dynamo.trace_rules.clear_lru_cache()
said["cleared"] = "torch._dynamo.utils" in sys.modules
lowering = importlib.import_module("torch._inductor.lowering")
said["allowed"] = "vllm::anything" in lowering.FALLBACK_ALLOW_LIST
import torch._dynamo.symbolic_convert as convert, torch._inductor.runtime.triton_helpers as helpers
said["class"] = decorators.InliningInstructionTranslator is convert.InliningInstructionTranslator
said["library"] = logits.libdevice is helpers.libdevice
said["used"] = callable(torch._dynamo.optimize) and callable(torch._inductor.list_options)
print(json.dumps(said))
"""


def said_by(*argv: str) -> dict[str, Any]:
    """What a program with this command line finds, before and after it uses the compiler."""
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT, *argv],
        env={**os.environ, "CPU_BACKEND_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    said: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return said


WHOLE = {"allowed": True, "class": True, "library": True, "used": True, "same": True}


def test_a_server_imports_it_when_it_is_used_and_then_whole() -> None:
    said = said_by("/somewhere/bin/vllm", "serve", "model")
    assert said == {**WHOLE, "imported": False, "doubled": 42, "cleared": False}


def test_torch_calls_the_entry_point() -> None:
    ours = [one for one in entry_points(group="torch.backends") if one.name == "cpu_backend"]
    assert [one.load() for one in ours] == [vllm_cpu_backend.torch_imported]


def test_other_programs_import_it_with_the_host() -> None:
    script = (
        SCRIPT.partition("said = ")[0] + 'print(hasattr(doubled, "_torchdynamo_orig_callable"))'
    )
    command = [sys.executable, "-c", script, "/somewhere/bin/vllm", "bench"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout.splitlines()[-1:] == ["True"], found.stderr


def test_a_broken_package_does_not_keep_torch_from_being_imported(tmp_path: Path) -> None:
    (tmp_path / "cpu_backend").mkdir()
    (tmp_path / "cpu_backend/__init__.py").write_text("raise ImportError('no library')")
    shutil.copy(vllm_cpu_backend.__file__, tmp_path)
    script = (
        "import sys; sys.modules['vllm.env_override'] = sys; import vllm_cpu_backend as ours; "
        "ours.torch_imported(); print('imported')"
    )
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.stdout == "imported\n", found.stderr
