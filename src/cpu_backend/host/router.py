"""The router's correction bias and sigmoid scores count in every mixture of experts.

What: the host's router for CPUs treats experts without groups as one group.
Why: it heeds the bias and such scores only where experts are chosen in groups.
Since: 0.32
Until: it heeds them everywhere.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.layers.fused_moe.router.cpu_router",
    "CPURouter.__init__(self, ...)",
    when=When.COMPUTING,
)
def one_group(original: Any) -> Any:
    """Where scores would be dropped."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        if self.custom_routing_function is not None or self.use_grouped_topk:
            return
        corrected = self.e_score_correction_bias is not None
        if self.scoring_func == "sigmoid" or (self.scoring_func == "softmax" and corrected):
            self.use_grouped_topk, self.num_expert_group, self.topk_group = True, 1, 1

    return __init__
