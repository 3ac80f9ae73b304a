"""A processor of images and sounds that cannot be loaded, in one sentence.

What: ``cached_processor_from_config`` raises a sentence that names the package to install.
Why: the host shows a traceback.
Since: 0.32
Until: never: manners, not a defect.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch
from cpu_backend.serving import packages


@patch("vllm.multimodal.processing.context", "cached_processor_from_config")
def load(original: Any) -> Any:
    """In a sentence."""

    def from_config(model_config: Any, *args: Any, **kwargs: Any) -> Any:
        with packages.of_processors(model_config.model):
            return original(model_config, *args, **kwargs)

    return from_config
