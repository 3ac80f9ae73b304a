"""GGUF files of the real model, served as they are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.e2e import engine
from tests.e2e.gguf_copy import write_mixed

ROOT = Path(__file__).resolve().parents[2]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TEXT = (ROOT / "tests/e2e/alice.txt").read_text()


@pytest.fixture(scope="session")
def answers(
    model_path: str, gguf_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[list[int], float]]:
    """Of each model, computing in fp32: greedy tokens after the question, perplexity of a text."""
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    question = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True)["input_ids"]
    models = {
        "checkpoint": model_path,
        "gguf": gguf_file,
        "mixed": write_mixed(gguf_file, tmp_path_factory.mktemp("mixed") / "mixed.gguf"),
    }
    found = {}
    for name, model in models.items():
        job: dict[str, Any] = {
            "engine": {
                "model": str(model),
                "dtype": "float32",
                "max_model_len": 2048,
                "skip_tokenizer_init": False,  # a file brings its own
            },
            "batches": [[question], [tokenizer(TEXT).input_ids]],
            "sampling": {"max_tokens": 24, "prompt_logprobs": 0},
        }
        [[said], [read]] = engine.run(job)
        logprobs = read["prompt_logprobs"]
        found[name] = said["tokens"], math.exp(-sum(logprobs) / len(logprobs))
    return found


def test_the_file_says_what_its_dequantized_copy_says(
    answers: dict[str, tuple[list[int], float]], model_path: str
) -> None:
    """The copy's weights were rounded to bf16, which is all that lies between them."""
    assert "Paris" in AutoTokenizer.from_pretrained(model_path).decode(answers["gguf"][0])
    assert answers["gguf"][0][:8] == answers["checkpoint"][0][:8]
    assert answers["gguf"][1] == pytest.approx(answers["checkpoint"][1], rel=0.005)


def test_types_may_be_mixed_within_a_layer(answers: dict[str, tuple[list[int], float]]) -> None:
    assert answers["mixed"][1] == pytest.approx(answers["gguf"][1], rel=0.01)
