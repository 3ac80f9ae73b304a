"""Sessions of the host's endpoint for sounds in pieces."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.e2e.server import Server


@contextlib.contextmanager
def session(server: Server) -> Iterator[Any]:
    """``send(type, ...)`` and ``receive()`` of one that waits for a sound."""
    from websockets.sync.client import connect

    with connect(f"ws://127.0.0.1:{server.port}/v1/realtime") as socket:

        def send(kind: str, **rest: Any) -> None:
            socket.send(json.dumps({"type": kind, **rest}))

        def receive() -> dict[str, Any]:
            message: dict[str, Any] = json.loads(socket.recv(timeout=60))
            return message

        assert receive()["type"] == "session.created"
        send("session.update", model=server.model)
        send("input_audio_buffer.commit")
        yield send, receive


def as_sent(samples: Any) -> Any:
    return (samples.clip(-1, 1) * 32767).astype("<i2")


def as_read(sent: Any) -> Any:
    """What the host makes of it."""
    return (sent / 32768).astype("float32")


def append(send: Callable[..., None], sent: Any) -> None:
    send("input_audio_buffer.append", audio=base64.b64encode(sent.tobytes()).decode())


def ask(server: Server, sent: Any, parts: int = 7) -> str:
    """The text of a whole session; what comes bit by bit is the same."""
    texts = []
    with session(server) as (send, receive):
        for part in range(parts):
            append(send, sent[len(sent) * part // parts : len(sent) * (part + 1) // parts])
        send("input_audio_buffer.commit", final=True)
        while (event := receive())["type"] == "transcription.delta":
            texts.append(event["delta"])
    assert event["type"] == "transcription.done", event
    assert "".join(texts) == event["text"]
    text: str = event["text"]
    return text


def write_letters_alone(model: Any, folder: Path, name: str, letters: slice) -> None:
    """Have model and checkpoint, whose embedding has that name and is the head, answer in these
    tokens: of those that are no text a client sees nothing."""
    weight = model.get_input_embeddings().weight
    kept = torch.zeros_like(weight)
    kept[letters] = weight.detach()[letters]
    weight.data.copy_(kept)
    path = folder / "model.safetensors"
    weights = load_file(path)
    assert name in weights
    save_file({**weights, name: kept}, path, {"format": "pt"})
