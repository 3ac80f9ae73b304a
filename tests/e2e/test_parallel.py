"""Tensor, pipeline and data parallel servers compute what one rank computes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e import engine
from tests.e2e.conftest import Quantize
from tests.e2e.engine import NEW_TOKENS
from tests.e2e.even_heads import write_even_heads, write_even_heads_gguf
from tests.e2e.gguf_copy import write_mixed
from tests.e2e.server import Server

# One thread per rank wherever the system puts it: for more ranks than this machine has cores.
CROWDED = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def even_model(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The demo model's function with a number of heads that two ranks can share."""
    target = tmp_path_factory.mktemp("even") / "model"
    write_even_heads(Path(model_path), target)
    return str(target)


def tokens(batches: list[list[list[int]]], environ: dict[str, str], **options: Any) -> Any:
    """Greedy tokens per batch and request."""
    job = {
        "engine": {"dtype": "float32", "max_model_len": 2048, **options},
        "batches": batches,
        "sampling": {"max_tokens": NEW_TOKENS},
    }
    return [[result["tokens"] for result in batch] for batch in engine.run(job, **environ)]


def test_two_tensor_parallel_ranks_give_the_tokens_of_one(
    even_model: str, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    batches = [prompts, prompts[::-1]]  # the second pass from the prefix cache
    first, again = tokens(batches, {}, model=even_model, tensor_parallel_size=2)
    assert first == expected
    assert again[::-1] == expected


def test_two_pipeline_stages_give_the_tokens_of_one_rank(
    model_path: str, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    [batched] = tokens([prompts], {}, model=model_path, pipeline_parallel_size=2)
    assert batched == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "sizes"), [("demo", (3, 1)), ("even", (2, 2))], ids=["tp 3", "tp 2 pp 2"]
)
def test_more_ranks_than_cores_give_the_same_tokens(
    heads: str,
    sizes: tuple[int, int],
    model_path: str,
    even_model: str,
    prompts: list[list[int]],
    expected: list[list[int]],
) -> None:
    chosen = [i for i, ids in enumerate(prompts) if len(ids) <= 130]
    [batched] = tokens(
        [[prompts[i] for i in chosen]],
        CROWDED,
        model=model_path if heads == "demo" else even_model,
        tensor_parallel_size=sizes[0],
        pipeline_parallel_size=sizes[1],
    )
    assert batched == [expected[i] for i in chosen]


@pytest.mark.slow
def test_16_bit_sums_over_ranks_are_the_same_on_every_run(
    even_model: str, prompts: list[list[int]]
) -> None:
    chosen = [ids for ids in prompts if len(ids) <= 130]
    job = {
        "engine": {"model": even_model, "dtype": "bfloat16", "max_model_len": 2048},
        "batches": [chosen],
        "sampling": {"max_tokens": NEW_TOKENS, "logprobs": 0},
    }
    job["engine"] |= {"tensor_parallel_size": 2}  # type: ignore[index]
    assert engine.run(job) == engine.run(job)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["cpu_int4", "gptq-act-order", "w8a8-static", "gguf"])
def test_two_ranks_share_quantized_weights(
    scheme: str,
    model_path: str,
    gguf_file: Path,
    quantize: Quantize,
    prompts: list[list[int]],
    tmp_path: Path,
) -> None:
    """Their logprobs are one rank's but for the sums' order and activations rounded to 16 bits."""
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 2048}
    if scheme == "gguf":  # with layers of several types
        even = write_even_heads_gguf(gguf_file, tmp_path / "even.gguf", layers=3)
        model = write_mixed(even, tmp_path / "mixed.gguf")
    else:
        model = tmp_path / "even"
        write_even_heads(Path(model_path), model, layers=3)
        if scheme.startswith("cpu_"):
            options["quantization"] = scheme
        else:
            model = quantize(scheme, model, tmp_path / scheme)
    one, two = (
        engine.run(
            {
                "engine": {"model": str(model), "tensor_parallel_size": ranks, **options},
                "batches": [[prompts[-2]]],
                "sampling": {"max_tokens": 1, "prompt_logprobs": 0},
            }
        )[0][0]["prompt_logprobs"]
        for ranks in (1, 2)
    )
    torch.testing.assert_close(torch.tensor(two), torch.tensor(one), rtol=0, atol=0.01)


def test_two_replicas_answer_like_one_and_share_nothing(
    model_path: str, prompts: list[list[int]], expected: list[list[int]], tmp_path: Path
) -> None:
    arguments = ["-dp", "2", "--dtype", "float32", "--max-model-len", "2048"]
    with Server(model_path, tmp_path / "log", *arguments) as server:
        assert [server.tokens(ids) for ids in prompts] == expected
        busy = [
            engine_id
            for engine_id, count in server.metrics("vllm:request_success_total", "engine").items()
            if count
        ]
        assert sorted(busy) == ["0", "1"]
        cpus = re.findall(r"thread on CPUs (\S+),", server.log())
        assert sorted(cpus) == ["0", "1"]
