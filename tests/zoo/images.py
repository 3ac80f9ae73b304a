"""Images beside text."""

from __future__ import annotations

from tests.zoo import (
    image_specs,
    more_renamed_image_specs,
    nvidia_specs,
    remote_image_specs,
    renamed_image_specs,
)
from tests.zoo.audio import is_audio
from tests.zoo.mixed import examine

__all__ = ["SPECS", "examine", "registered"]

SPECS = tuple(
    sorted(
        (
            *image_specs.SPECS,
            *more_renamed_image_specs.SPECS,
            *nvidia_specs.SPECS,
            *remote_image_specs.SPECS,
            *renamed_image_specs.SPECS,
        ),
        key=lambda spec: spec.name,
    )
)


def registered() -> list[str]:
    """The names of the host's classes for images and video."""
    from vllm.model_executor.models import registry

    return [name for name in registry._MULTIMODAL_MODELS if not is_audio(name)]
