"""Models that read pictures out of GGUF files of llama.cpp's converter: one of each kind of change
that it makes; all of them by hand (``tests.zoo.gguf_pictures``)."""

from __future__ import annotations

import re

import pytest

from cpu_backend.gguf import projectors
from tests.zoo.test_gguf_files import DOCS, states

# What goes to layers of the text, and experts; sounds and bounds; a tower that turns heads; another
# name for the text, which needs no torchvision; files of the older scripts.
PICTURES = [
    *(
        pytest.param(f"{name}ForConditionalGeneration", marks=pytest.mark.needs("torchvision"))
        for name in ("Qwen3VLMoe", "Gemma4", "Mistral3")
    ),
    pytest.param("Idefics3ForConditionalGeneration", marks=pytest.mark.slow),
    pytest.param(
        "LlavaNextForConditionalGeneration",
        marks=[pytest.mark.slow, pytest.mark.needs("torchvision")],
    ),
]


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_seen_as_by_the_checkpoint(name: str) -> None:
    assert states("gguf_pictures", name) == {name: "right"}


def test_the_documentation_names_every_projector() -> None:
    section = DOCS.read_text().split("## Pictures")[1].split("##")[0]
    kinds = {known.kind for known in projectors.KNOWN}
    assert kinds <= set(re.findall(r"`([\w.-]+)`", section))
