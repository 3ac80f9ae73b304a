"""Programs that make an engine beside other work, as scripts and notebooks do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WITH_TORCH = """
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
IN_A_PROCESS = """
import multiprocessing, sys

kept = []


def work(model):
    from vllm import LLM, SamplingParams

    kept.append(LLM(model, max_model_len=64))
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    [out] = kept[0].generate([{"prompt_token_ids": [1, 2, 3]}], sampling)
    print("tokens", len(out.outputs[0].token_ids), flush=True)


if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work, args=sys.argv[1:2])
    process.start()
    process.join()
    assert process.exitcode == 0
"""
ASYNCHRONOUS = """
import asyncio, sys


async def main():
    from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams

    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(sys.argv[1], max_model_len=64))
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    async for out in engine.generate({"prompt_token_ids": [1, 2, 3]}, sampling, request_id="1"):
        pass
    print("tokens", len(out.outputs[0].token_ids))
    engine.shutdown()


asyncio.run(main())
"""
BOUND = """
import os, sys, torch

cpus = len(os.sched_getaffinity(0))
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
from vllm import LLM, SamplingParams

drafts = {"method": "draft_model", "model": sys.argv[1], "num_speculative_tokens": 2}
llm = LLM(sys.argv[1], max_model_len=64, speculative_config=drafts)
sampling = SamplingParams(max_tokens=3, ignore_eos=True)
[out] = llm.generate([{"prompt_token_ids": [1, 2, 3]}], sampling)
print("tokens", len(out.outputs[0].token_ids))
affinities = [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]
bound = [allowed for allowed in affinities if len(allowed) == 1]
assert cpus == 1 or len(bound) in (0, torch.get_num_threads()), bound  # 0: it is forbidden
"""


@pytest.mark.parametrize(
    ("program", "ranks"),
    [(WITH_TORCH, 1), (WITH_TORCH, 2), (IN_A_PROCESS, 1), (ASYNCHRONOUS, 1), (BOUND, 1)],
    ids=["after torch", "ranks after torch", "in a process", "asynchronous", "threads stay bound"],
)
def test_a_program_computes_and_ends(
    program: str, ranks: int, model_path: str, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, script, model_path, str(ranks)],
        env={**os.environ, "OMP_NUM_THREADS": "2", "VLLM_CPU_KVCACHE_SPACE": "0.1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tokens 3" in done.stdout
    assert "Traceback" not in done.stderr, done.stderr
