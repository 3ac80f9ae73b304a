"""Mixtures of experts: each expert packed like a linear layer, all of them run by one op."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.modular_kernel import (
    ExpertTokensMetadata,
    FusedMoEExpertsModular,
)

from cpu_backend import ops

ACTIVATIONS = (MoEActivation.SILU, MoEActivation.GELU, MoEActivation.GELU_TANH)


class CpuExperts(CPUUnquantizedExperts):
    """Experts of fp32, bf16 or fp16 in their own dtype, of any size."""

    packed: ops.Experts

    @classmethod
    def _supports_grouped_gemm(cls, moe_config: FusedMoEConfig) -> tuple[bool, str | None]:
        return True, None

    @classmethod
    def _padded_intermediate_size(cls, moe_config: FusedMoEConfig) -> int:
        return int(moe_config.intermediate_size_per_partition)

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        return activation in ACTIVATIONS

    @staticmethod
    def pack(weight: torch.Tensor, parts: int) -> ops.PackedLinear:
        """One expert's weight [out, in]; gate and up projections come in 2 parts."""
        return ops.PackedLinear(weight, parts=parts)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Pack w13 [experts, 2 * intermediate, hidden] and w2 [experts, hidden, intermediate], and
        free them: what stays has their shape and no memory, because the host asks for it.
        """
        packed = []
        for name, parts in (("w13_weight", 2), ("w2_weight", 1)):
            weight = getattr(layer, name).detach()
            packed.append([self.pack(expert, parts) for expert in weight])
            freed = weight.new_empty(1).expand(weight.shape)
            setattr(layer, name, torch.nn.Parameter(freed, requires_grad=False))
        self.packed = ops.Experts(*packed, self.moe_config.activation.value)

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: MoEActivation,
        global_num_experts: int,
        expert_map: torch.Tensor | None,
        a1q_scale: torch.Tensor | None,
        a2_scale: torch.Tensor | None,
        workspace13: torch.Tensor,
        workspace2: torch.Tensor,
        expert_tokens_meta: ExpertTokensMetadata | None,
        apply_router_weight_on_input: bool,
    ) -> None:
        """hidden_states [tokens, hidden] to output, the weighted sums of its experts' results.

        With ``apply_router_weight_on_input`` the host has already weighted the input.
        """
        del w1, w2, activation, global_num_experts, a1q_scale, a2_scale, expert_tokens_meta
        del workspace13, workspace2
        if expert_map is not None:  # -1 for what other ranks hold
            topk_ids = expert_map[topk_ids]
        if apply_router_weight_on_input:
            topk_weights = torch.ones_like(topk_weights)
        self.packed(
            output,
            hidden_states,
            topk_weights.float(),
            topk_ids.int(),
            self.w1_bias,
            self.w2_bias,
        )


def classes_for_cpu(original: Any) -> Any:
    """The host's ``backend_to_kernel_cls`` with this backend's class in the place of its CPU ones,
    which choose among kernels by the name of an instruction set.
    """
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend

    def backend_to_kernel_cls(backend: Any) -> list[type[FusedMoEExpertsModular]]:
        if backend == UnquantizedMoeBackend.CPU:
            return [CpuExperts]
        return list(original(backend))

    return backend_to_kernel_cls
