"""Media beside text: which kinds of them nobody has compared, and how sounds are encoded."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.worker.cpu_model_runner import CPUModelRunner as HostCPUModelRunner

from cpu_backend import architectures
from cpu_backend.worker import model_runner
from cpu_backend.worker.model_runner import CPUModelRunner


def test_a_server_says_which_kinds_nobody_compared(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(architectures.logger, "propagate", True)
    with caplog.at_level(logging.WARNING, "vllm"):
        architectures.tell_media("Gemma3ForConditionalGeneration", {"image": 999})
        architectures.tell_media("MuseGlimmerForConditionalGeneration", {"image": 9, "video": 0})
        architectures.tell_media("NobodysModel", {"image": 9})  # of which a line says it already
        assert not caplog.messages
        architectures.tell_media("MuseGlimmerForConditionalGeneration", {"image": 9, "video": 1})
    [line] = caplog.messages
    assert "takes requests with video, too, which have not been compared" in line


def runner_with(*kinds: str) -> CPUModelRunner:
    """Requests a, b and so on with one medium each."""
    runner = CPUModelRunner.__new__(CPUModelRunner)
    runner.media_ahead = None
    runner.requests = {
        name: SimpleNamespace(mm_features=[SimpleNamespace(modality=kind)])
        for name, kind in zip("ab", kinds, strict=False)
    }
    return runner


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("image", "image"), [{"a": [0], "b": [0]}]),
        (("audio", "audio"), [{"a": [0]}, {"b": [0]}]),
        (("image", "audio"), [{"a": [0]}, {"b": [0]}]),
    ],
)
def test_sounds_are_encoded_one_after_the_other(
    kinds: tuple[str, str], expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def encode(_: Any, step: Any) -> list[Any]:
        seen.append(step.scheduled_encoder_inputs)
        return [request for request in step.scheduled_encoder_inputs]

    monkeypatch.setattr(HostCPUModelRunner, "_execute_mm_encoder", encode)
    runner = runner_with(*kinds)
    step = SimpleNamespace(scheduled_encoder_inputs={"a": [0], "b": [0]})
    assert runner._execute_mm_encoder(step) == ["a", "b"]
    assert seen == expected


@pytest.mark.parametrize(("slow_seconds", "said"), [(-1.0, True), (30.0, False)])
def test_a_server_says_that_media_take_long(
    slow_seconds: float,
    said: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[Any] = []
    monkeypatch.setattr(model_runner.logger, "warning_once", lambda *args: lines.append(args))
    monkeypatch.setattr(model_runner, "SLOW_SECONDS", slow_seconds)
    monkeypatch.setattr(HostCPUModelRunner, "_execute_mm_encoder", lambda *_: [range(7), range(3)])
    step = SimpleNamespace(scheduled_encoder_inputs={"a": [0], "b": [0]})
    assert runner_with("image", "image")._execute_mm_encoder(step) == [range(7), range(3)]
    assert [(tokens, meanwhile) for _, tokens, _, meanwhile in lines] == [
        (10, ", in which no request went on")
    ] * said
