"""EXAONE 4.5 takes the mean off its images' pixels.

What: its encoder gets the layer that does so, if it has one that does nothing.
Why: the host leaves that to the model, whose class says that it does so, as the one it is derived
    from; but its encoder is made without.
Since: 0.32
Until: 0.33 mends it.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch


@patch(
    "vllm.model_executor.models.exaone4_5",
    "Exaone4_5_ForConditionalGeneration.__init__(self, *, vllm_config, prefix)",
)
def normalize_pixels(original: Any) -> Any:
    """After the encoder is made."""
    from vllm.model_executor.layers.fusion.mm_input_norm import (
        IdentityInputNorm,
        build_mm_input_norm,
    )

    def __init__(self: Any, *, vllm_config: Any, prefix: str = "") -> None:  # noqa: N807
        original(self, vllm_config=vllm_config, prefix=prefix)
        if isinstance(self.visual.input_norm, IdentityInputNorm):
            self.visual.input_norm = build_mm_input_norm(vllm_config.model_config)

    return __init__
