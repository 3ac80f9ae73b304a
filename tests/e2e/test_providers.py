"""The real model on other providers: the tokens of transformers."""

from __future__ import annotations

import pytest

from tests.e2e import engine
from tests.e2e.engine import NEW_TOKENS


@pytest.mark.parametrize(
    "provider", ["torch", pytest.param("zentorch", marks=pytest.mark.needs("zentorch"))]
)
def test_fp32_tokens_equal_transformers(
    provider: str, model_path: str, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    job = {
        "engine": {"model": model_path, "dtype": "float32", "max_model_len": 2048},
        "batches": [prompts],
        "sampling": {"max_tokens": NEW_TOKENS},
    }
    [results], log = engine.run_and_log(job, CPU_BACKEND_LINEAR=provider, VLLM_LOGGING_LEVEL="INFO")
    assert [result["tokens"] for result in results] == expected
    assert f"linear: {provider};" in log
    assert "steps are not recorded" in log
