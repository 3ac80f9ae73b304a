"""A mixture of experts end to end: against transformers, over two ranks, and in every scheme."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.conftest import mostly_slow
from tests.e2e import engine
from tests.e2e.conftest import Quantize, greedy_tokens
from tests.e2e.engine import NEW_TOKENS
from tests.e2e.even_heads import write_even_heads, write_even_heads_gguf
from tests.e2e.mixture import write_gpt_oss, write_mixture, write_mixture_gguf, write_qwen_gguf
from tests.e2e.server import Server

TEXT = (Path(__file__).parent / "alice.txt").read_text()

# Perplexity on the text, as a multiple of bf16's; as in test_quantized.py.
SCHEMES = {
    "w8a8": 1.1,
    "w4a8": 1.5,
    "w4a16": 1.45,
    "w4a16-zp": 1.35,
    "gptq": 1.6,
    "gptq-v2": 1.35,
    "gptq-8": 1.05,
    "awq": 1.35,
    "fp8": 1.1,
    "fp8-static": 1.1,
    "fp8-block": 1.1,
    "fp8-deepseek": 1.1,
    "mxfp8": 1.1,
    "mxfp4": 2.0,
    "nvfp4": 6.0,  # as much with its dequantized weights; test_nvfp4_experts.py is the sharper test
}


@pytest.fixture(scope="module")
def mixture(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With heads that two ranks can share."""
    folder = tmp_path_factory.mktemp("mixture")
    write_even_heads(Path(model_path), folder / "even")
    return write_mixture(folder / "even", folder / "mixture")


@pytest.fixture(scope="module")
def shallow(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with eight layers, which are enough where tokens are compared."""
    folder = tmp_path_factory.mktemp("shallow")
    write_even_heads(Path(model_path), folder / "even", layers=8)
    return write_mixture(folder / "even", folder / "mixture")


@pytest.fixture(scope="module")
def short(prompts: list[list[int]]) -> list[list[int]]:
    return [ids for ids in prompts if len(ids) <= 200]


@pytest.fixture(scope="module")
def wanted(shallow: Path, short: list[list[int]]) -> list[list[int]]:
    """Greedy fp32 tokens of transformers."""
    model = AutoModelForCausalLM.from_pretrained(shallow, dtype=torch.float32)
    return greedy_tokens(model, short)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"tensor_parallel_size": 2}, marks=pytest.mark.slow),
        {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    ],
    ids=["one rank", "halves of experts", "half of the experts"],
)
def test_fp32_tokens_equal_transformers(
    options: dict[str, Any], shallow: Path, short: list[list[int]], wanted: list[list[int]]
) -> None:
    job = {
        "engine": {"model": str(shallow), "dtype": "float32", "max_model_len": 2048, **options},
        "batches": [short, *[[ids] for ids in short]],
        "sampling": {"max_tokens": NEW_TOKENS},
    }
    batched, *alone = engine.run(job)
    assert [result["tokens"] for result in batched] == wanted
    assert [result["tokens"] for [result] in alone] == wanted


@pytest.mark.parametrize(
    "provider",
    [
        pytest.param("torch", marks=pytest.mark.slow),
        pytest.param("zentorch", marks=pytest.mark.needs("zentorch")),
    ],
)
def test_other_providers_of_experts_give_the_same_tokens(
    provider: str, shallow: Path, short: list[list[int]], wanted: list[list[int]]
) -> None:
    job = {
        "engine": {"model": str(shallow), "dtype": "float32", "max_model_len": 2048},
        "batches": [short],
        "sampling": {"max_tokens": NEW_TOKENS},
    }
    named = {"CPU_BACKEND_LINEAR": "torch", "CPU_BACKEND_EXPERTS": provider}
    [results] = engine.run(job, **named)
    assert [result["tokens"] for result in results] == wanted


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--enable-expert-parallel"]], ids=["halves", "half"])
def test_replicas_compute_the_experts_of_each_others_requests(
    options: list[str],
    shallow: Path,
    short: list[list[int]],
    wanted: list[list[int]],
    tmp_path: Path,
) -> None:
    options = ["-dp", "2", "--dtype", "float32", "--max-model-len", "2048", *options]
    with Server(str(shallow), tmp_path / "log", *options) as server:
        assert server.tokens(short[0]) == wanted[0]  # beside a replica without work
        with ThreadPoolExecutor(len(short)) as clients:
            assert list(clients.map(server.tokens, short)) == wanted


@pytest.fixture(scope="module")
def perplexity(mixture: Path) -> Callable[..., float]:
    """``perplexity(model, ...)`` of the text."""
    ids = AutoTokenizer.from_pretrained(mixture)(TEXT).input_ids

    def run(model: Path, **options: Any) -> float:
        job = {
            "engine": {"model": str(model), "max_model_len": 2048, **options},
            "batches": [[ids]],
            "sampling": {"max_tokens": 1, "prompt_logprobs": 0},
        }
        [[read]] = engine.run(job)
        result = math.exp(-torch.tensor(read["prompt_logprobs"]).mean().item())
        print(f"perplexity {result:.2f}")
        return result

    return run


@pytest.fixture(scope="module")
def unquantized(mixture: Path, perplexity: Callable[..., float]) -> float:
    """Perplexity of the mixture in bf16."""
    return perplexity(mixture, dtype="bfloat16")


@pytest.mark.parametrize("scheme", mostly_slow(SCHEMES, "gptq"))
def test_checkpoint_keeps_its_perplexity(
    scheme: str,
    mixture: Path,
    quantize: Quantize,
    tmp_path: Path,
    perplexity: Callable[..., float],
    unquantized: float,
) -> None:
    model = quantize(scheme, mixture, tmp_path / scheme)
    assert perplexity(model, dtype="bfloat16") <= SCHEMES[scheme] * unquantized


@pytest.mark.parametrize(
    ("name", "most"), mostly_slow([("cpu_int8", 1.02), ("cpu_int4", 1.1)], ("cpu_int4", 1.1))
)
def test_quantization_at_load(
    name: str, most: float, mixture: Path, perplexity: Callable[..., float], unquantized: float
) -> None:
    assert perplexity(mixture, dtype="bfloat16", quantization=name) <= most * unquantized


def test_experts_in_activation_order_are_refused_by_name(
    model_path: str, quantize: Quantize, tmp_path: Path
) -> None:
    write_even_heads(Path(model_path), tmp_path / "even", layers=1)
    mixture = write_mixture(tmp_path / "even", tmp_path / "mixture")
    model = quantize("gptq-act-order", mixture, tmp_path / "model")
    job = {
        "engine": {"model": str(model), "max_model_len": 256},
        "batches": [],
        "sampling": {"max_tokens": 1},
    }
    with pytest.raises(AssertionError, match=r"in activation order \(desc_act\) are not supported"):
        engine.run(job)


def test_gpt_oss_is_what_transformers_computes(
    model_path: str, tmp_path: Path, perplexity: Callable[..., float]
) -> None:
    """Gates and ups in turns, their limits, biases and sinks; unquantized and in MXFP4, whose
    weights are the same numbers."""
    plain, mxfp4 = write_gpt_oss(Path(model_path), tmp_path)
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    ids = torch.tensor([AutoTokenizer.from_pretrained(plain)(TEXT).input_ids])
    with torch.no_grad():
        expected = math.exp(model(ids, labels=ids).loss.item())
    assert perplexity(plain, dtype="float32") == pytest.approx(expected, rel=1e-5)
    assert perplexity(mxfp4, dtype="bfloat16") == pytest.approx(expected, rel=5e-3)


@pytest.mark.slow
def test_a_gguf_file_says_what_its_dequantized_copy_says(
    gguf_file: Path, mixture: Path, perplexity: Callable[..., float], tmp_path: Path
) -> None:
    """Rounding the copy's down projections to 8 bits is what lies between them, and its own to
    bf16."""
    even = write_even_heads_gguf(gguf_file, tmp_path / "even.gguf", layers=30)
    file = write_mixture_gguf(even, mixture, tmp_path / "mixture.gguf")
    copy = perplexity(mixture, dtype="float32")
    for options in ({}, {"tensor_parallel_size": 2}):
        assert perplexity(file, dtype="float32", **options) == pytest.approx(copy, rel=0.01)


def test_a_gguf_file_of_qwen3_moe_says_what_transformers_say(
    gguf_file: Path, short: list[list[int]], tmp_path: Path
) -> None:
    checkpoint, file = write_qwen_gguf(gguf_file, tmp_path)
    wanted = greedy_tokens(
        AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32), short
    )
    for options in ({}, {"tensor_parallel_size": 2, "enable_expert_parallel": True}):
        job = {
            "engine": {"model": str(file), "dtype": "float32", "max_model_len": 2048, **options},
            "batches": [short],
            "sampling": {"max_tokens": NEW_TOKENS},
        }
        [results] = engine.run(job)
        assert [result["tokens"] for result in results] == wanted
