"""What users get wrong: each start ends with a non-zero exit and one sentence that says it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server import VLLM, environment, free_port

# Only configurations are built: no process is started, no weight is read.
CONFIGURE = """
import json, os, sys
from vllm.engine.arg_utils import EngineArgs
from cpu_backend.errors import ConfigError
sentences = []
for variable, value in json.loads(sys.argv[2]):
    os.environ[variable] = value
    try:
        EngineArgs(model=sys.argv[1], device="cpu", max_model_len=2048).create_engine_config()
        sentences.append("")
    except ConfigError as error:
        if len(sys.argv) > 3:
            raise
        sentences.append(str(error))
    del os.environ[variable]
print(json.dumps(sentences))
"""

CASES = [
    ("VLLM_CPU_KVCACHE_SPACE", "0.5", ""),
    ("VLLM_CPU_KVCACHE_SPACE", "100000", "GiB"),
    ("VLLM_CPU_KVCACHE_SPACE", "-1", "positive"),
    ("VLLM_CPU_KVCACHE_SPACE", "lots", "positive"),
    ("VLLM_CPU_KVCACHE_SPACE", "0.001", "one request of 2048 tokens"),
    ("VLLM_CPU_OMP_THREADS_BIND", "0-1|2-3", "rank"),
    ("VLLM_CPU_OMP_THREADS_BIND", "4096", "4096"),
    ("VLLM_CPU_OMP_THREADS_BIND", "fast", "fast"),
    ("VLLM_CPU_NUM_OF_RESERVED_CPU", "-3", "VLLM_CPU_NUM_OF_RESERVED_CPU"),
    ("CPU_VISIBLE_MEMORY_NODES", "77", "77"),
]


def configure(
    model: str, settings: list[tuple[str, str]], *arguments: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    env = environment(VLLM_LOGGING_LEVEL="ERROR", **environ)
    del env["VLLM_CPU_KVCACHE_SPACE"]
    command = [sys.executable, "-c", CONFIGURE, model, json.dumps(settings), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)


@pytest.fixture(scope="module")
def sentences(model_path: str) -> list[str]:
    """What each of CASES says, all asked in one process."""
    done = configure(model_path, [(variable, value) for variable, value, _ in CASES])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: "=".join(CASES[case][:2]))
def test_wrong_setting_says_what_and_how_to_mend_it(sentences: list[str], case: int) -> None:
    words = CASES[case][2]
    assert words in sentences[case]
    assert bool(words) == bool(sentences[case])
    assert "\n" not in sentences[case]


@pytest.mark.parametrize(
    ("environ", "settings", "words"),
    [
        ({"CPU_BACKEND_ISA": "avx1024"}, [("HF_HUB_OFFLINE", "1")], "CPU_BACKEND_ISA=avx1024"),
        ({}, [("VLLM_CPU_KVCACHE_SPACE", "-1")], "positive"),
    ],
)
def test_wrong_setting_ends_the_process_with_one_line(
    model_path: str, environ: dict[str, str], settings: list[tuple[str, str]], words: str
) -> None:
    done = configure(model_path, settings, "raise", **environ)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("cpu_backend: ")]
    assert words in line


def serve(model: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [VLLM, "serve", model, "--port", str(free_port()), *arguments]
    env = environment(**environ)
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, timeout=300
    )


def test_device_typo_names_the_choices(model_path: str) -> None:
    done = serve(model_path, "--device", "gpu")
    assert done.returncode != 0
    assert "invalid choice: 'gpu'" in done.stdout


def test_missing_model_folder_is_named(tmp_path: Path) -> None:
    done = serve(str(tmp_path / "nothing"), "--device", "cpu")
    assert done.returncode != 0
    assert "nothing" in done.stdout


def test_unsupported_cache_dtype_is_named(model_path: str) -> None:
    done = serve(model_path, "--device", "cpu", "--kv-cache-dtype", "nvfp4")
    assert done.returncode != 0
    assert "--kv-cache-dtype nvfp4 is not supported" in done.stdout


def test_truncated_weights_are_refused(model_path: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(model_path, model)
    weights = model / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    done = serve(str(model), "--device", "cpu", "--max-model-len", "256")
    assert done.returncode != 0
    assert "SafetensorError" in done.stdout
