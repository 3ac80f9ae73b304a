"""Answers of a given form, by each library for it that the host can load.

The fourth, lm-format-enforcer, looks for modules that the host has moved, and is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.features.offline import Offline

PROMPTS = ["A city and its age:", "Once upon a time", "Number and letters:"]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Rome", "Oslo", "Lima"]},
        "old": {"type": "boolean"},
    },
    "required": ["city", "old"],
    "additionalProperties": False,
}
REGEX = r"[0-9]{3}-[a-f]{2}"
CHOICES = ["Rome", "Berlin"]
EBNF = 'root ::= "SELECT " column " FROM " table\ncolumn ::= "a" | "b"\ntable ::= "x" | "y"\n'
LARK = 'start: "SELECT " column " FROM " table\ncolumn: "a" | "b"\ntable: "x" | "y"\n'


def matches(kind: str, text: str) -> bool:
    if kind == "json":
        jsonschema.validate(json.loads(text), SCHEMA)
        return True
    if kind == "choice":
        return text in CHOICES
    return re.fullmatch(REGEX if kind == "regex" else r"SELECT [ab] FROM [xy]", text) is not None


def options(backend: str) -> dict[str, Any]:
    # Blanks between the parts of an object may go on for ever where they are left to chance.
    config = {"backend": backend, "disable_any_whitespace": backend != "outlines"}
    return {"max_model_len": 512, "structured_outputs_config": config}


@pytest.fixture(scope="module")
def engine(model_path: str) -> Iterator[Offline]:
    with Offline(model_path, **options("xgrammar")) as running:
        yield running


@pytest.mark.parametrize("backend", ["xgrammar", "guidance", "outlines"])
def test_answers_have_the_form_asked_for(engine: Offline, model_path: str, backend: str) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    if backend != "xgrammar":
        engine.start(model_path, **options(backend))
    forms: dict[str, Any] = {"json": SCHEMA, "regex": REGEX, "choice": CHOICES}
    if backend != "outlines":  # which knows no grammars
        forms["grammar"] = EBNF if backend == "xgrammar" else LARK
    free = SamplingParams(temperature=0, max_tokens=8)
    requests = [(kind, prompt) for kind in forms for prompt in PROMPTS]
    sampling = [
        SamplingParams(
            temperature=1.0,
            seed=20,
            max_tokens=60,
            structured_outputs=StructuredOutputsParams(**{kind: forms[kind]}),
        )
        for kind, _ in requests
    ]
    prompts = [prompt for _, prompt in requests]
    # A free request runs among them, and none of their masks touches it.
    *bound, among = engine.generate([*prompts, PROMPTS[1]], [*sampling, free], use_tqdm=False)
    for (kind, _), result in zip(requests, bound, strict=True):
        assert result.outputs[0].finish_reason == "stop"
        assert matches(kind, result.outputs[0].text), (kind, result.outputs[0].text)
    [alone] = engine.generate([PROMPTS[1]], free, use_tqdm=False)
    assert among.outputs[0].token_ids == alone.outputs[0].token_ids
