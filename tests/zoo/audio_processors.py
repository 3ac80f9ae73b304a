"""Processors, as in ``processors``, of models that hear."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.zoo.tokens import write_tokenizer

BANDS = 80


@dataclass(frozen=True)
class CohereFeatures:
    """What the host makes of a sound, as ``transformers``' model takes it: without padding."""

    feature_extractor: Any

    def __call__(self, sounds: list[Any], **options: Any) -> Any:
        made = self.feature_extractor(sounds, **options)
        frames = made.input_features[:, :, : int(made.length.max())]
        return SimpleNamespace(input_features=frames.transpose(1, 2))


def cohere_asr(folder: Path) -> Any:
    """The host's, which reads its settings in the model's config: ``transformers``' rounds no
    window to bf16."""
    from vllm.transformers_utils.processors.cohere_asr import CohereASRFeatureExtractor

    write_tokenizer(folder, ["<|startoftranscript|>"])
    extractor = CohereASRFeatureExtractor(feature_size=BANDS, max_duration=3, dither=0.0, pad_to=0)
    return SimpleNamespace(feature_extractor=CohereFeatures(extractor))
