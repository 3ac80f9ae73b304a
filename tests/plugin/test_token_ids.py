"""A token that only the tokenizer knows ends its request, not the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import AddedToken, Tokenizer

from cpu_backend.host.token_ids import unknown_token
from tests.zoo import kinds
from tests.zoo.build import build
from tests.zoo.tokens import write_tokenizer

VOCABULARY = 1000  # of the zoo's models


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([], ""),
        ([0, VOCABULARY - 1], ""),
        ([0, VOCABULARY], "the token 1000, which is not in the model's vocabulary of 1000 tokens"),
        ([-1], "the token -1"),
    ],
)
def test_tokens_of_a_text(ids: list[int], said: str) -> None:
    assert said in unknown_token(ids, {"type": "token"}, VOCABULARY)
    assert bool(unknown_token(ids, {"type": "token"}, VOCABULARY)) == bool(said)


def test_the_places_of_media_may_have_any() -> None:
    media = {"mm_placeholders": {"image": [SimpleNamespace(offset=1, length=2)]}}
    assert unknown_token([5, VOCABULARY, VOCABULARY, 5], media, VOCABULARY) == ""
    assert "token 1000" in unknown_token([5, 5, 5, VOCABULARY], media, VOCABULARY)


def ask(folder: str) -> None:
    """Print what the engine answers to a good request, to bad ones, and to a good one again."""
    from vllm import LLM, SamplingParams
    from vllm.exceptions import VLLMValidationError

    options = {"max_model_len": 64, "enforce_eager": True, "dtype": "float32"}
    llm = LLM(folder, **options)
    for prompt in ("a", "a<more>", {"prompt_token_ids": [VOCABULARY]}, "a"):
        try:
            [output] = llm.generate(prompt, SamplingParams(max_tokens=2), use_tqdm=False)
            print(f"{len(output.outputs[0].token_ids)} tokens")
        except VLLMValidationError as error:
            print(error)


def test_the_engine_goes_on(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    more = [f"<{number}>" for number in range(VOCABULARY - size)]
    tokenizer.add_special_tokens([AddedToken(text) for text in (*more, "<more>")])
    assert tokenizer.token_to_id("<more>") == VOCABULARY
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    build(kinds.find("LlamaForCausalLM")[1], tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == VOCABULARY
    script = f"from tests.plugin.test_token_ids import ask; ask({str(tmp_path)!r})"
    asked = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    first, text, tokens, last = asked.stdout.splitlines()[-4:]
    assert first == last == "2 tokens"
    assert "not in the model's vocabulary" in text
    assert "not in the model's vocabulary" in tokens
