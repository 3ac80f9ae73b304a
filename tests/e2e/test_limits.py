"""A container's limits of memory and CPU time, which the kernel enforces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import load_memory
from tests.e2e import engine
from tools import cgroup

MIB = 1 << 20
AS_SIZED = ["env", "-u", "VLLM_CPU_KVCACHE_SPACE", "VLLM_LOGGING_LEVEL=INFO"]
LENGTH = 1024


@pytest.mark.slow
@pytest.mark.needs("control groups")
def test_a_full_kv_cache_fits_the_memory_of_a_container(model_path: str, tmp_path: Path) -> None:
    """Its size is what the limit leaves, and every page of it is written."""
    prompts = [[1000 + i, *range(500, 499 + LENGTH)] for i in range(12)]
    job = {
        "engine": {"model": model_path, "max_model_len": LENGTH + 4},
        "batches": [prompts],
        "sampling": {"max_tokens": 4},
    }
    with cgroup.limited(1400 * MIB, 1) as program:
        [answers], log = engine.run_by([*program, *AS_SIZED], job, tmp_path)
    [sized] = [line for line in log.splitlines() if "cpu_backend: KV cache holds" in line]
    print(sized)
    assert "by the memory limit of the container (cgroup)" in sized
    assert [len(answer["tokens"]) for answer in answers] == [4] * len(prompts)


@pytest.mark.slow
@pytest.mark.needs("control groups")
def test_a_model_is_quantized_in_less_memory_than_its_checkpoint_takes(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shape = load_memory.Shape(2048, 8192, 18, 32, 8, 32000, tied=True, scheme="")
    load_memory.write(shape, model)
    limit = 2100 * MIB  # 20 MiB more than it takes were left at 2,000, which a busy machine uses up
    assert sum(file.stat().st_size for file in model.glob("*.safetensors")) > limit
    job = {
        "engine": {"model": str(model), "quantization": "cpu_int4", "max_model_len": 64},
        "batches": [[[1, 2, 3]]],
        "sampling": {"max_tokens": 2},
    }
    with cgroup.limited(limit, 2) as program:
        [[answer]], _ = engine.run_by([*program, *AS_SIZED], job, tmp_path)
    assert len(answer["tokens"]) == 2


@pytest.mark.parametrize(
    ("environ", "setting", "said"),
    [
        ("VLLM_CPU_KVCACHE_SPACE=0.05", {"max_model_len": -1}, r"1\.\d requests of 2,176 tokens"),
        ("VLLM_CPU_KVCACHE_SPACE=", {"gpu_memory_utilization": 0.1}, r"utilization 0\.1 less the"),
    ],
    ids=["length that fits", "share of the memory"],
)
def test_what_was_asked_of_the_memory_is_done(
    environ: str, setting: dict[str, Any], said: str, model_path: str, tmp_path: Path
) -> None:
    job = {
        "engine": {"model": model_path, **setting},
        "batches": [[[1, 2, 3]]],
        "sampling": {"max_tokens": 2},
    }
    [answers], log = engine.run_by(["env", environ, "VLLM_LOGGING_LEVEL=INFO"], job, tmp_path)
    assert len(answers[0]["tokens"]) == 2
    [sized] = [line for line in log.splitlines() if "cpu_backend: KV cache holds" in line]
    assert re.search(said, sized), sized
