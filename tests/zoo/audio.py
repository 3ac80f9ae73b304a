"""Sounds beside text."""

from __future__ import annotations

import re

from tests.zoo.audio_specs import SPECS
from tests.zoo.mixed import examine

__all__ = ["SPECS", "examine", "is_audio", "registered"]

# What the host's names of such classes have in them.
NAMED = r"Audio|Asr|ASR|Speech|Transcribe|Whisper|Voxtral|Ultravox|Kimia|Dasheng"


def is_audio(name: str) -> bool:
    """Whether the host's class takes sounds and no images, by its name."""
    return re.search(NAMED, name) is not None


def registered() -> list[str]:
    """The names of the host's classes for sounds."""
    from vllm.model_executor.models import registry

    return [name for name in registry._MULTIMODAL_MODELS if is_audio(name)]
