"""EXAONE 4.5 takes the mean off its images' pixels.

What: its encoder gets the layer that does so, if it has one that does nothing.
Why: the host leaves that to the model, whose class says that it does so, as the one it is derived
    from; but its encoder is made without.
Since: 0.31
Until: 0.33 mends it.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import Hosts, load, patch, rely_on

NORMS = "vllm.model_executor.layers.fusion.mm_input_norm"
WITH_NORMS = Hosts(since=(0, 31))
rely_on(NORMS, "IdentityInputNorm", "build_mm_input_norm(model_config)", hosts=WITH_NORMS)


@patch(
    "vllm.model_executor.models.exaone4_5",
    "Exaone4_5_ForConditionalGeneration.__init__(self, *, vllm_config, prefix)",
    hosts=WITH_NORMS,
)
def normalize_pixels(original: Any) -> Any:
    """After the encoder is made."""
    norms = load(NORMS)

    def __init__(self: Any, *, vllm_config: Any, prefix: str = "") -> None:  # noqa: N807
        original(self, vllm_config=vllm_config, prefix=prefix)
        if isinstance(self.visual.input_norm, norms.IdentityInputNorm):
            self.visual.input_norm = norms.build_mm_input_norm(vllm_config.model_config)

    return __init__
