"""Quantized KV caches under the real model: how sure it is of a text, how much fits."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.conftest import mostly_slow
from tests.e2e import engine

TEXT = (Path(__file__).parent / "alice.txt").read_text()

# Perplexity on the text and tokens that fit, as multiples of those with a bf16 cache.
CACHES = {
    "fp8": (1.03, 2.0),
    "fp8_e5m2": (1.06, 2.0),
    "int8_per_token_head": (1.01, 256 / 136),  # 64 + 64 channels and two fp32
}


@dataclass(frozen=True)
class Outcome:
    perplexity: float
    tokens_that_fit: int


def _run(model_path: str, kv_cache_dtype: str) -> Outcome:
    """One engine.  Prompts are prefilled in chunks, so that most of each is read from the cache."""
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    text = tokenizer(TEXT).input_ids
    generated = {"max_tokens": 24, "logprobs": 0}
    job = {
        "engine": {
            "model": model_path,
            "dtype": "bfloat16",
            "kv_cache_dtype": kv_cache_dtype,
            "max_model_len": 2048,
            "max_num_batched_tokens": 300,
        },
        "batches": [[text[:600]], [text[:600]], [text]],
        "sampling": [generated, generated, {"max_tokens": 1, "prompt_logprobs": 0}],
    }
    [[first], [again], [read]], log = engine.run_and_log(job, VLLM_LOGGING_LEVEL="INFO")
    assert first["cached"] == 0
    assert again["cached"] >= 512, "the second request is meant to find its prefix cached"
    assert again["tokens"] == first["tokens"]
    assert again["logprobs"] == first["logprobs"]
    fits = re.search(r"KV cache holds ([\d,]+) tokens", log)
    assert fits
    return Outcome(
        math.exp(-sum(read["prompt_logprobs"]) / len(read["prompt_logprobs"])),
        int(fits[1].replace(",", "")),
    )


@pytest.fixture(scope="module")
def plain(model_path: str) -> Outcome:
    """With keys and values in bf16."""
    return _run(model_path, "auto")


@pytest.mark.parametrize("cache", mostly_slow(CACHES, "int8_per_token_head"))
def test_quantized_cache_keeps_its_perplexity_and_holds_more(
    cache: str, model_path: str, plain: Outcome
) -> None:
    perplexity, capacity = CACHES[cache]
    outcome = _run(model_path, cache)
    print(f"{cache}: {outcome.perplexity / plain.perplexity:.4f} times the perplexity of bf16")
    assert outcome.perplexity <= perplexity * plain.perplexity
    assert outcome.tokens_that_fit == pytest.approx(capacity * plain.tokens_that_fit, rel=0.01)
