"""Mixtures whose first layers are dense, with experts that see every token beside the chosen."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import SIGMOID, SOFTMAX, Architecture
from cpu_backend.gguf.architectures.tensors import ATTENTION, EXPERTS, FFN_NORM, MLP, Tensor, named

SHARED = named(
    {
        "ffn_gate_shexp.weight": "mlp.shared_experts.gate_proj.weight",
        "ffn_up_shexp.weight": "mlp.shared_experts.up_proj.weight",
        "ffn_down_shexp.weight": "mlp.shared_experts.down_proj.weight",
    }
)
CORRECTION = named({"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"})


class Routed(Architecture):
    """What config.json says of such a mixture in the names of DeepSeek.

    gating: llama.cpp's function of the router where a file does not say it.  scoring: those that
    the host's class computes; if none, as config.json says.  grouped: experts may be chosen within
    groups.
    """

    gating = SOFTMAX
    scoring: tuple[int, ...] = (SOFTMAX, SIGMOID)
    grouped = False

    def config(self) -> dict[str, Any]:
        return super().config() | self.experts("n_routed_experts") | self.routing()

    def routing(self) -> dict[str, Any]:
        """How experts are chosen and weighted."""
        groups, used_groups = self.groups()
        return {
            "first_k_dense_replace": self.dense_layers,
            "moe_layer_freq": 1,
            "n_group": groups,
            "n_shared_experts": self.shared_experts,
            "norm_topk_prob": self.flag("expert_weights_norm", False),
            "routed_scaling_factor": self.weights_scale(),
            "scoring_func": "softmax" if self.gating_function() == SOFTMAX else "sigmoid",
            "topk_group": used_groups,
        }

    @property
    def dense_layers(self) -> int:
        """So many layers have no experts, and are the first: as the file says, or its tensors."""
        layers = self.num_layers
        shown = next((n for n in range(layers) if not self.present("ffn_up.weight", n)), layers)
        return min(self.size("leading_dense_block_count", shown, least=0), layers)

    def mlp_layer_types(self) -> list[str]:
        """config.json's names of layers without experts and of those with."""
        dense = self.dense_layers
        return ["dense"] * dense + ["sparse"] * (self.num_layers - dense)

    @property
    def shared_experts(self) -> int:
        """How many experts see every token."""
        return self.size("expert_shared_count", 0, least=0)

    def gating_function(self) -> int:
        """SOFTMAX or SIGMOID."""
        found = self.size("expert_gating_func", self.gating, least=0) or self.gating
        if found not in self.scoring:
            raise self.refuse(f"chooses experts by the function {found}")
        return found

    def groups(self) -> tuple[int, int]:
        """Of experts, and how many of them are used; without groups: one."""
        groups = self.size("expert_group_count", 1, least=0) or 1
        used = self.size("expert_group_used_count", 1, least=0) or 1
        if groups > 1 and not self.grouped:
            raise self.refuse("chooses experts within groups")
        if used > groups or self.size("expert_count") % groups:
            raise self.file.error(f"uses {used} of {groups} groups of experts")
        return groups, used

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        sizes = super().sizes(layer, config)
        shared = self.shared_experts * sizes["expert_ffn"]
        return sizes | {"shared_ffn": sizes["shared_ffn"] or shared}

    def feed_forward(self, number: int) -> dict[str, Tensor]:
        """Of a layer: dense, or experts."""
        if number < self.dense_layers:
            return MLP
        return EXPERTS | (SHARED if self.shared_experts else {})

    def layer(self, number: int) -> dict[str, Tensor]:
        return ATTENTION | FFN_NORM | self.feed_forward(number)
