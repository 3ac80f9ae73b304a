"""A sound in pieces over a websocket, text out while it comes: a small random Voxtral Realtime
behind the host's endpoint for that, against transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from mistral_common.tokens.tokenizers.audio import OFFLINE_STREAMING_BUFFER_TOKENS

from tests.e2e.server import Server
from tests.features.realtime import append, as_read, as_sent, ask, session, write_letters_alone
from tests.features.test_transcription import recording
from tests.zoo import audio_specs, build, mistral
from tests.zoo.media import RATE, Sound

SPEC = next(spec for spec in audio_specs.SPECS if spec.models == "Voxtral Realtime")
SOUNDS = (Sound(30000, 1), Sound(48000, 2), Sound(100000, 3))
BYTES = build.BASE["vocab_size"] - 256  # the first of Mistral's tokens that is a byte
LETTERS = slice(BYTES + ord("a"), BYTES + ord("z") + 1)
EMBEDDING = "model.embed_tokens.weight"
OPTIONS = ("--tokenizer-mode", "mistral", "--config-format", "mistral", "--max-model-len", "512")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("voxtral")


@pytest.fixture(scope="module")
def transcribe(folder: Path) -> Callable[[Any], str]:
    """``transcribe(samples)``: what transformers' model writes about them, part by part as the
    host cuts them."""
    spectrum = SPEC.processor(folder)
    model: Any = build.build(SPEC, folder)
    write_letters_alone(model, folder, EMBEDDING, LETTERS)

    def hear(samples: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        """States before the encoder's layers, of the tokens of these samples."""
        heard = samples[max(begin - mistral.BEHIND, 0) : end + mistral.AHEAD]
        frames = spectrum([heard.numpy()], RATE)["input_features"]
        states = model.model.audio_tower.embedder(frames[..., frames.shape[-1] % 2 :])
        return states[:, -4 * ((end - begin) // mistral.STEP) :]

    @torch.no_grad()
    def compute(samples: Any) -> str:
        silences = (mistral.LEFT, mistral.DELAY + 1 + OFFLINE_STREAMING_BUFFER_TOKENS)
        left, right = (torch.zeros(tokens * mistral.STEP) for tokens in silences)
        samples = torch.cat([left, torch.from_numpy(samples), right])
        tokens = [1, *[mistral.silence()] * (mistral.LEFT + mistral.DELAY)]
        states, begun, text = [], 0, ""
        while (end := len(tokens) * mistral.STEP) + mistral.AHEAD <= len(samples):
            states.append(hear(samples, begun, end))
            embedded, begun = torch.cat(states, 1), end
            logits = model(torch.tensor([tokens]), encoder_inputs_embeds=embedded).logits
            tokens.append(int(logits[0, -1].argmax()))
            text += chr(tokens[-1] - BYTES)
        return text

    return compute


@pytest.fixture(scope="module")
def server(
    folder: Path, transcribe: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(str(folder), log, "--dtype", "float32", *OPTIONS) as running:
        yield running


def test_text_is_that_of_transformers(server: Server, transcribe: Callable[[Any], str]) -> None:
    """One session after the other, in more parts or fewer, then all at once."""
    sent = [as_sent(sound.make()) for sound in SOUNDS]
    expected = [transcribe(as_read(samples)) for samples in sent]
    assert len(set("".join(expected))) > 2
    assert [ask(server, samples) for samples in sent] == expected
    assert ask(server, sent[0], parts=40) == expected[0]
    with ThreadPoolExecutor() as pool:
        assert [*pool.map(lambda samples: ask(server, samples), sent * 2)] == expected * 2


def test_text_comes_while_the_sound_does(server: Server) -> None:
    with session(server) as (send, receive):
        append(send, as_sent(SOUNDS[0].make()))
        assert receive()["type"] == "transcription.delta"


def test_who_leaves_disturbs_nobody(server: Server, transcribe: Callable[[Any], str]) -> None:
    sent = as_sent(SOUNDS[1].make())
    for _ in range(3):
        with session(server) as (send, receive):
            append(send, sent)
            receive()
    assert ask(server, sent) == transcribe(as_read(sent))


def test_others_go_on_behind_the_end_of_a_sound(server: Server) -> None:
    """Where requests without a session ask for more tokens than theirs have."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    files = [recording(sound.make()) for sound in SOUNDS]

    def transcription(file: tuple[str, bytes], tokens: int = 200) -> str:
        options = {"max_completion_tokens": tokens}
        reply = client.audio.transcriptions.create(
            model=server.model, file=file, temperature=0, extra_body=options
        )
        return reply.text

    alone = [transcription(file) for file in files]
    assert min(map(len, alone)) == 200
    with ThreadPoolExecutor() as pool:
        assert [*pool.map(transcription, files)] == alone
