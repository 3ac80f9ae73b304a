"""MiniCPM-V 4.7 places an image's tokens by row and column, whatever its config leaves out.

What: a config that says nothing of ``uses_mrope_canvas`` nor of ``mrope_mode`` means the former.
Why: ``transformers`` writes neither and always places them so; the host then counts them like text.
Since: 0.32
Until: the host does so unasked.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import Hosts, patch


@patch(
    "vllm.model_executor.models.minicpmv4_7",
    "MiniCPMV4_7ForConditionalGeneration._init_canvas_mrope(self, vllm_config)",
    hosts=Hosts(since=(0, 32)),  # which have the model
)
def place_on_canvas(original: Any) -> Any:
    """Unless the config says otherwise."""

    def init_canvas(self: Any, vllm_config: Any) -> None:
        if not (hasattr(self.config, "uses_mrope_canvas") or hasattr(self.config, "mrope_mode")):
            self.config.uses_mrope_canvas = True
        original(self, vllm_config)

    return init_canvas
