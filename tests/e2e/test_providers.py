"""The real model on other providers: the tokens of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import engine
from tests.e2e.conftest import Quantize
from tests.e2e.engine import NEW_TOKENS

ZENTORCH = pytest.mark.needs("zentorch")


@pytest.mark.parametrize("provider", ["torch", pytest.param("zentorch", marks=ZENTORCH)])
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


@pytest.mark.parametrize(
    ("provider", "scheme", "floats", "says"),
    [
        ("torch", "w8a8-azp", "float32", "does not have activations in int8_token_azp"),
        ("torch", "fp8-deepseek", "bfloat16", "does not multiply weights of float8_e4m3fn"),
        pytest.param(
            *("zentorch", "awq", "float32", "does not multiply 4-bit codes by float32"),
            marks=ZENTORCH,
        ),
    ],
)
def test_a_scheme_that_is_lacking_is_told_before_weights_are_read(
    provider: str,
    scheme: str,
    floats: str,
    says: str,
    model_path: str,
    tmp_path: Path,
    quantize: Quantize,
) -> None:
    model = quantize(scheme, Path(model_path), tmp_path / scheme)
    job = {
        "engine": {"model": str(model), "dtype": floats, "max_model_len": 256},
        "batches": [],
        "sampling": {"max_tokens": 1},
    }
    with pytest.raises(AssertionError) as error:
        engine.run_and_log(job, CPU_BACKEND_LINEAR=provider, VLLM_LOGGING_LEVEL="INFO")
    log = str(error.value)
    assert f"cannot be used for this model: {provider} {says}. " in log
    assert "Loading weights took" not in log
