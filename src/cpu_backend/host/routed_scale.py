"""In fp16 the outputs of routed and shared experts keep their proportions to the rest of the layer.

What: the runner of experts scales what the routed ones give, unless the layer is of a class that
    undoes the host's other way; layers with a norm behind their experts do not undo it.
Why: to keep fp16 from overflowing, the host divides the shared experts' part instead, which leaves
    all of it too small.  DeepSeek's layers make up for that; GLM-4.5's, Laguna's and Nemotron-H's
    do not, and A.X K1's and openPangu's do so where a norm has made it up already.
Since: 0.32
Until: the layers say to the runner what they make up for.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch

MODELS = "vllm.model_executor.models"


@patch(
    "vllm.model_executor.layers.fused_moe.runner.moe_runner",
    "MoERunner._maybe_apply_routed_scale_to_output(self, shared_output, fused_output)",
)
def scale_routed(original: Any) -> Any:
    """As the host does in other dtypes."""

    def _maybe_apply_routed_scale_to_output(
        self: Any, shared_output: Any, fused_output: Any
    ) -> Any:
        if getattr(self, "made_up_for", False):
            return original(self, shared_output, fused_output)
        if self.routed_scaling_factor != 1.0:
            fused_output *= self.routed_scaling_factor
        return shared_output, fused_output

    return _maybe_apply_routed_scale_to_output


@patch(f"{MODELS}.deepseek_v2", "DeepseekV2DecoderLayer.__init__(self, ...)")
@patch(f"{MODELS}.openpangu", "OpenPanguDecoderLayer.__init__(self, ...)")
@patch(f"{MODELS}.AXK1", "AXK1DecoderLayer.__init__(self, ...)")
def tell_runner(original: Any) -> Any:
    """Whether the layer divides its residual by the factor; the one that does it has its own."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        if hasattr(self, "post_mlp_layernorm"):
            self.routed_scaling_factor = 1.0
            return
        for module in self.modules():
            if hasattr(module, "_maybe_apply_routed_scale_to_output"):
                module.made_up_for = True

    return __init__
