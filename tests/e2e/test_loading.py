"""What has been packed, and whose memory freed, when the last weight of a checkpoint is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import mixture
from tests.e2e.conftest import Quantize

# What then still has the numbers of the checkpoint: more than shapes and scales.
SCRIPT = """
import json, sys
from vllm import LLM
from cpu_backend.layers import arrivals

original = arrivals.packed_once

def packed_once(model):
    kept = {
        name: sum(p.untyped_storage().nbytes() for p in module.parameters(recurse=False))
        for name, module in model.named_modules()
    }
    print("KEPT", json.dumps({name: size for name, size in kept.items() if size > 100}))
    return original(model)

arrivals.packed_once = packed_once
LLM(device="cpu", skip_tokenizer_init=True, max_model_len=256, **json.loads(sys.argv[1]))
"""


def kept(**engine: str | int) -> set[str]:
    """The kinds of modules, the last part of their names, that are not packed yet."""
    environ = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(engine)],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("KEPT ")]
    return {name.rsplit(".", 1)[-1] for name in json.loads(line.removeprefix("KEPT "))}


NORMS = {"norm", "input_layernorm", "post_attention_layernorm"}


@pytest.mark.parametrize("quantization", ["", "cpu_int4"])
def test_all_of_a_mixture_but_routers_norms_and_vocabulary(
    tmp_path: Path, quantization: str
) -> None:
    mixture.write_qwen(tmp_path)
    scheme = {"quantization": quantization} if quantization else {}
    left = {"gate", "q_norm", "k_norm", "embed_tokens", "lm_head"}
    assert kept(model=str(tmp_path), **scheme) == left | NORMS


def test_codes(model_path: str, tmp_path: Path, quantize: Quantize) -> None:
    model = quantize("w4a16", Path(model_path), tmp_path / "model")
    assert kept(model=str(model)) == NORMS | {"embed_tokens", "lm_head"}
