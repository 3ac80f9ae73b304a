"""Sounds in, text out: a small random Whisper behind the host's endpoints, against transformers."""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys
import wave
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from tests.e2e.server import Server
from tests.zoo import audio_specs, build
from tests.zoo.media import RATE, Sound

WHISPER = next(spec for spec in audio_specs.SPECS if spec.models == "Whisper")
# Tokens that are letters: of bytes that are none, a server and a tokenizer may hold back others.
SPEC = dataclasses.replace(WHISPER, config={**WHISPER.config, "vocab_size": 100})
PROMPT = (1, 2, 3, 4)  # <|startoftranscript|><|en|><|transcribe|><|notimestamps|>
NEW_TOKENS = 24
SOUNDS = (Sound(30000, 3), Sound(47999, 3), Sound(12000, 2), Sound(10000, 10))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whisper")


@pytest.fixture(scope="module")
def transcribe(folder: Path) -> Callable[[Any], str]:
    """``transcribe(samples)``: what transformers' model writes about them."""
    from transformers import WhisperProcessor

    SPEC.processor(folder)
    processor = WhisperProcessor.from_pretrained(folder)  # as the server reads it
    model: Any = build.build(SPEC, folder)

    @torch.no_grad()
    def compute(samples: Any) -> str:
        features = processor.feature_extractor(samples, sampling_rate=RATE, return_tensors="pt")
        tokens = list(PROMPT)
        for _ in range(NEW_TOKENS):
            ids = torch.tensor([tokens])
            logits = model(features.input_features, decoder_input_ids=ids).logits[0, -1]
            tokens.append(int(logits.argmax()))
        text: str = processor.tokenizer.decode(tokens[len(PROMPT) :], skip_special_tokens=True)
        return text

    return compute


@pytest.fixture(scope="module")
def server(
    folder: Path, transcribe: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(str(folder), log, "--dtype", "float32") as running:
        yield running


def recording(samples: Any) -> tuple[str, bytes]:
    """A file as people have them: 16 bits, one channel."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes((samples.clip(-1, 1) * 32767).astype("<i2").tobytes())
    return "sound.wav", file.getvalue()


def as_read(samples: Any) -> Any:
    """What a reader of the file gets."""
    return ((samples.clip(-1, 1) * 32767).astype("<i2") / 32768).astype("float32")


def ask(server: Server, sound: tuple[str, bytes], **options: Any) -> Any:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    return client.audio.transcriptions.create(
        model=server.model,
        file=sound,
        language="en",
        temperature=0,
        extra_body={"max_completion_tokens": NEW_TOKENS},
        **options,
    )


def test_text_is_that_of_transformers(server: Server, transcribe: Callable[[Any], str]) -> None:
    """One sound after the other, then all at once."""
    made = [sound.make() for sound in SOUNDS]
    expected = [transcribe(as_read(samples)) for samples in made]
    assert len(set(expected)) == len(SOUNDS)
    files = [recording(samples) for samples in made]
    assert [ask(server, file).text for file in files] == expected
    with ThreadPoolExecutor() as pool:
        assert [reply.text for reply in pool.map(lambda f: ask(server, f), files * 2)] == (
            expected * 2
        )


def test_stream_is_the_same_text(server: Server) -> None:
    file = recording(SOUNDS[1].make())
    parts = [chunk.choices[0]["delta"].get("content") for chunk in ask(server, file, stream=True)]
    assert len(parts) > 2
    assert "".join(part for part in parts if part) == ask(server, file).text


def test_long_sound_is_read_in_parts(server: Server) -> None:
    """The model hears three seconds at a time."""
    reply = ask(server, recording(Sound(6 * RATE, 2).make()), response_format="json")
    assert reply.usage.seconds == 6
    assert len(reply.text) > len(ask(server, recording(Sound(2 * RATE, 2).make())).text)


@pytest.mark.parametrize("content", [b"", b"RIFF", b"no sound at all" * 100])
def test_what_is_no_sound_is_a_bad_request(server: Server, content: bytes) -> None:
    with pytest.raises(openai.BadRequestError):
        ask(server, ("sound.wav", content))
    assert ask(server, recording(SOUNDS[0].make())).text


@pytest.mark.parametrize("missing", ["soundfile", "av"])
def test_missing_package_is_named(tmp_path: Path, missing: str) -> None:
    """``av`` is needed for the file's 16 kHz to become 8; it alone would read it too loud."""
    (tmp_path / "sound.wav").write_bytes(recording(SOUNDS[0].make())[1])
    code = f"""
import sys
sys.modules["{missing}"] = None  # as if it were not there
from vllm.platforms import current_platform
current_platform.device_type
from vllm.multimodal.media.audio import load_audio
load_audio("sound.wav", sr=8000)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "ValueError: This server cannot read sounds" in done.stderr
    assert "`pip install soundfile av`" in done.stderr
