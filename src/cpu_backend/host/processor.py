"""A processor of images and sounds that cannot be loaded or used, in one sentence.

What: ``cached_processor_from_config``, and what first asks it for the size of an image
    (``MultiModalBudget``), raise a sentence that names the package to install.
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


@patch(
    "vllm.multimodal.encoder_budget",
    "MultiModalBudget.__init__(self, vllm_config, mm_registry, ...)",
)
def use(original: Any) -> Any:
    """The same."""

    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        with packages.of_first_use(vllm_config.model_config.architecture):
            original(self, vllm_config, *args, **kwargs)

    return __init__
