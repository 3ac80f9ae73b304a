"""Experts that give their input back (LongCat-Flash) are chosen and added without a GPU's kernels.

What: ``ZeroExpertRouter._compute_routing`` is written in operations of torch.
Why: the host's calls one kernel of CUDA and one of Triton.
Since: 0.32
Until: its router for CPUs knows such experts.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.layers.fused_moe.router.zero_expert_router",
    "ZeroExpertRouter._compute_routing(self, hidden_states, router_logits, indices_type, ...)",
    when=When.COMPUTING,
)
def in_torch(original: Any) -> Any:
    """For softmax scores and identities; all else stays with the host."""
    import torch

    def compute_routing(
        self: Any,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        indices_type: torch.dtype | None,
        **rest: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.scoring_func != "softmax" or self.zero_expert_type != "identity":
            chosen: tuple[torch.Tensor, torch.Tensor] = original(
                self, hidden_states, router_logits, indices_type, **rest
            )
            return chosen
        scores = router_logits.float().softmax(-1)
        ids = (scores + self.e_score_correction_bias.float()).topk(self.top_k, -1)[1]
        weights = scores.gather(-1, ids)
        if self.renormalize:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights * self.routed_scaling_factor
        real = ids < self.num_logical_experts
        kept = weights.masked_fill(real, 0.0).sum(-1, keepdim=True)
        self._zero_expert_output = (hidden_states.float() * kept).to(hidden_states.dtype)
        ids = ids.masked_fill(~real, 0).to(indices_type or torch.int32)
        return weights.masked_fill(~real, 0.0), ids

    return compute_routing
