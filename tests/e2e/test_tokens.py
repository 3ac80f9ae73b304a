"""What the engine computes on the real model, against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.conftest import mostly_slow
from tests.e2e import engine
from tests.e2e.engine import NEW_TOKENS

SAMPLING = {"max_tokens": NEW_TOKENS, "logprobs": 0}


def _job(model: str, batches: list[list[list[int]]], **options: Any) -> dict[str, Any]:
    return {
        "engine": {"model": model, "dtype": "float32", "max_model_len": 2048, **options},
        "batches": batches,
        "sampling": SAMPLING,
    }


def _tokens(results: list[dict[str, Any]]) -> list[list[int]]:
    return [result["tokens"] for result in results]


def test_fp32_tokens_equal_transformers_batched_alone_and_from_the_prefix_cache(
    model_path: str, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    batches = [prompts, *[[ids] for ids in prompts]]
    batched, *alone = engine.run(_job(model_path, batches))
    assert _tokens(batched) == expected
    assert _tokens([result for batch in alone for result in batch]) == expected
    # The second pass finds the full pages of its prompts (128 tokens) in the cache.
    assert [result["cached"] for result in batched] == [0] * len(prompts)
    for ids, [result] in zip(prompts, alone, strict=True):
        assert result["cached"] == (len(ids) - 1) // 128 * 128


def test_fp32_tokens_equal_transformers_with_chunked_prefill_and_no_cache(
    model_path: str, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    options = {"max_num_batched_tokens": 160, "max_num_seqs": 5, "enable_prefix_caching": False}
    [batched, again] = engine.run(_job(model_path, [prompts, prompts[::-1]], **options))
    assert _tokens(batched) == expected
    assert _tokens(again[::-1]) == expected
    assert all(result["cached"] == 0 for result in again)


def test_fp32_embeddings_equal_transformers(
    model_path: str, prompts: list[list[int]], reference: Any
) -> None:
    chosen = [ids for ids in prompts if len(ids) <= 500]
    [ours] = engine.run(_job(model_path, [chosen], runner="pooling"))
    model = reference(dtype=torch.float32).model
    with torch.no_grad():
        last = [model(torch.tensor([ids])).last_hidden_state[0, -1] for ids in chosen]
    expected = torch.nn.functional.normalize(torch.stack(last), dim=-1)
    torch.testing.assert_close(torch.tensor(ours), expected, atol=2e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["scalar"])
def test_fp32_tokens_do_not_depend_on_the_instruction_set(
    model_path: str, prompts: list[list[int]], expected: list[list[int]], isa: str
) -> None:
    short = [ids for ids in prompts if len(ids) <= 200]
    [batched] = engine.run(_job(model_path, [short]), CPU_BACKEND_ISA=isa)
    assert _tokens(batched) == [e for e, ids in zip(expected, prompts, strict=True) if ids in short]


@pytest.mark.parametrize("dtype", mostly_slow(["bfloat16", "float16"], "bfloat16"))
def test_16_bit_results_are_batch_invariant_and_as_close_as_transformers(
    model_path: str, prompts: list[list[int]], reference: Any, dtype: str
) -> None:
    chosen = [ids for ids in prompts if 16 <= len(ids) <= 500]
    job = _job(
        model_path, [chosen, *[[ids] for ids in chosen]], dtype=dtype, enable_prefix_caching=False
    )
    job["sampling"] = {"max_tokens": NEW_TOKENS, "logprobs": 0, "prompt_logprobs": 0}
    batched, *alone = engine.run(job)
    # Bit for bit: neither tokens nor log-probabilities know who else was in the batch.
    assert batched == [result for batch in alone for result in batch]

    ours = torch.cat([torch.tensor(result["prompt_logprobs"]) for result in batched])
    exact = _prompt_logprobs(reference(dtype=torch.float32), chosen)
    theirs = _prompt_logprobs(reference(dtype=getattr(torch, dtype)), chosen)
    assert (ours - exact).norm() <= 2 * (theirs - exact).norm()


def _prompt_logprobs(model: Any, prompts: list[list[int]]) -> torch.Tensor:
    """Log-probability of every prompt token but the first, prompt after prompt."""
    parts = []
    with torch.no_grad():
        for ids in prompts:
            logits = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
            parts.append(logits[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0])
    return torch.cat(parts)
