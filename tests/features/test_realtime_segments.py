"""A sound in pieces over a websocket, text out after every five seconds of it: a small random
Qwen3-ASR behind the host's endpoint for that, against transformers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.server import Server
from tests.features.realtime import as_read, as_sent, ask, write_letters_alone
from tests.zoo import audio_specs, build
from tests.zoo.media import RATE, Sound
from tests.zoo.tokens import SPECIAL, byte_vocabulary

pytestmark = pytest.mark.needs("torchvision")  # which the host's module asks for

SPEC = next(spec for spec in audio_specs.SPECS if spec.name == "Qwen3ASRRealtimeGeneration")
SOUNDS = (Sound(30000, 1), Sound(190000, 2), Sound(100000, 3))
SECONDS = 5  # of a segment
NEW_TOKENS = 64  # of each
PROMPT = (
    "<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|><|im_end|>\n<|im_start|>assistant\n"
)
EMBEDDING = "model.language_model.embed_tokens.weight"
FIRST = byte_vocabulary([*SPECIAL, "", " ", "  "])["a"]  # behind three tokens of sounds


def test_text_is_that_of_transformers(tmp_path: Path) -> None:
    """A segment's answer reads the segments before and their answers, but for their last token; one
    session after the other, then all at once."""
    transcribe = _reference(tmp_path)
    sent = [as_sent(sound.make()) for sound in SOUNDS]
    expected = [transcribe(as_read(samples)) for samples in sent]
    assert len(set(expected)) == len(SOUNDS)
    options = ("--dtype", "float32", "--max-model-len", "1024")
    with Server(str(tmp_path), tmp_path / "log", *options) as server:
        assert [ask(server, samples) for samples in sent] == expected
        with ThreadPoolExecutor() as pool:
            assert [*pool.map(lambda samples: ask(server, samples), sent * 2)] == expected * 2


def _reference(folder: Path) -> Callable[[Any], str]:
    processor = SPEC.processor(folder)
    model: Any = build.build(SPEC, folder)
    write_letters_alone(model, folder, EMBEDDING, slice(FIRST, FIRST + 26))

    @torch.no_grad()
    def compute(samples: Any) -> str:
        tokens: list[int] = []
        spectra, masks, text = [], [], ""
        for begin in range(0, len(samples), SECONDS * RATE):
            segment = samples[begin : begin + SECONDS * RATE]
            made = processor(text=PROMPT, audio=[segment], sampling_rate=RATE, return_tensors="pt")
            spectra.append(_filled(made["input_features"]))
            masks.append(_filled(made["input_features_mask"]))
            tokens = [*tokens[:-1], *made["input_ids"][0].tolist()]
            for _ in range(NEW_TOKENS):
                logits = model(
                    input_ids=torch.tensor([tokens]),
                    input_features=torch.cat(spectra),
                    input_features_mask=torch.cat(masks),
                ).logits
                tokens.append(int(logits[0, -1].argmax()))
                text += chr(tokens[-1] - FIRST + ord("a"))
        return text

    return compute


def _filled(made: torch.Tensor) -> torch.Tensor:
    """As long as a whole segment's."""
    return torch.nn.functional.pad(made, (0, 100 * SECONDS - made.shape[-1]))
