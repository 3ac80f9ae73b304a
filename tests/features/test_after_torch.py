"""A program that has used torch before it makes an engine, as notebooks do."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import os, sys, torch

numbers = torch.randn(1000, 1000)
torch.nn.functional.gelu(numbers)
assert len(os.listdir("/proc/self/task")) > 1, "torch has no threads"

from vllm import LLM, SamplingParams

llm = LLM(sys.argv[1], max_model_len=64, pipeline_parallel_size=int(sys.argv[2]))
sampling = SamplingParams(max_tokens=3, ignore_eos=True)
[out] = llm.generate([{"prompt_token_ids": [1, 2, 3]}], sampling)
print("tokens", len(out.outputs[0].token_ids))
assert not torch.nn.functional.gelu(numbers).isnan().any()
"""


def run(model_path: str, ranks: int) -> str:
    environ = {**os.environ, "OMP_NUM_THREADS": "2", "VLLM_CPU_KVCACHE_SPACE": "0.1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, model_path, str(ranks)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_engine_computes(model_path: str) -> None:
    assert "tokens 3" in run(model_path, 1)


def test_ranks_do(model_path: str) -> None:
    assert "tokens 3" in run(model_path, 2)
