"""Mixtures of experts: each matrix of an expert packed like a linear layer, all run by one op."""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend import ops, providers
from cpu_backend.errors import ConfigError
from cpu_backend.host.bases import (
    CPUUnquantizedExperts,
    ExpertTokensMetadata,
    FusedMoEConfig,
    FusedMoEMethodBase,
    FusedMoEQuantConfig,
    LoRAExpertsMixin,
    MoEActivation,
    MoELoRAContext,
    QuantKey,
    RoutedExperts,
    UnquantizedFusedMoEMethod,
    UnquantizedMoeBackend,
    biased_moe_quant_config,
    make_unquantized_moe_kernel,
)
from cpu_backend.layers.expert_adapters import ExpertAdapters
from cpu_backend.layers.quantization.packing import naming

# The host's activations and the op's.
ACTIVATIONS = {
    MoEActivation.SILU: "silu",
    MoEActivation.GELU: "gelu",
    MoEActivation.GELU_TANH: "gelu_tanh",
    MoEActivation.SWIGLUOAI: "swigluoai",  # gates and ups in turns
    MoEActivation.SWIGLUOAI_UNINTERLEAVE: "swigluoai",
    MoEActivation.SWIGLUSTEP: "swiglustep",
    MoEActivation.SILU_NO_MUL: "silu",
    MoEActivation.GELU_NO_MUL: "gelu",
    MoEActivation.GELU_TANH_NO_MUL: "gelu_tanh",
    MoEActivation.RELU2_NO_MUL: "relu2",
}
SWIGLUOAI = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702, "swiglu_beta": 1.0}


class CpuExperts(LoRAExpertsMixin, CPUUnquantizedExperts):
    """The host's frame around the op: any size of experts, whatever their weights are."""

    packed: providers.Experts
    adapters: ExpertAdapters | None = None

    @classmethod
    def _supports_grouped_gemm(cls, moe_config: FusedMoEConfig) -> tuple[bool, str | None]:
        return True, None

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        return activation in ACTIVATIONS

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return True

    @staticmethod
    def _supports_quant_scheme(
        weight_key: QuantKey | None, activation_key: QuantKey | None
    ) -> bool:
        return True

    def set_lora_context(self, ctx: MoELoRAContext) -> None:
        """From here on tokens may have adapters.  Raises ConfigError for a provider's experts that
        they cannot be added to."""
        if not self.packed.layers:
            raise ConfigError(
                "LoRA adapters of mixtures need the experts one by one, which the provider of "
                "CPU_BACKEND_EXPERTS does not have: choose native, or leave --enable-lora out."
            )
        super().set_lora_context(ctx)
        self.adapters = ExpertAdapters(ctx, self.moe_config.activation == MoEActivation.SWIGLUOAI)

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
        arguments = (topk_weights.float(), topk_ids.int(), self.w1_bias, self.w2_bias)
        if self.adapters is None:
            self.packed(output, hidden_states, *arguments)
        else:
            self.adapters(self.packed, output, hidden_states, *arguments)


class ExpertsMethod(FusedMoEMethodBase):
    """What follows the loading, in the place of the host's own: a mixin before a host's class.

    That class has made the parameters, [experts, ...] each; ``matrix`` reads what belongs to one
    expert's gate and up projection ("w13"; of experts without a gate the up projection) or down
    projection ("w2"), or ``packed`` packs it.  in_turns: gates and ups are, where the activation
    says so.
    """

    in_turns = True

    @property
    def halves(self) -> int:
        """Projections in "w13": 2, or without a gate 1."""
        return 2 if self.moe.activation.is_gated else 1

    def create_weights(
        self,
        layer: RoutedExperts,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """The host's; before, what the scheme or the provider that was named lacks is told."""
        self.check(layer, intermediate_size_per_partition)
        gate_up = (1, self.halves * intermediate_size_per_partition, hidden_size)
        providers.experts.rehearse(
            (type(self), gate_up, params_dtype, self.moe.activation),
            lambda provider: self.try_on(provider, gate_up, params_dtype),
        )
        super().create_weights(
            layer,
            num_experts,
            hidden_size,
            intermediate_size_per_partition,
            params_dtype,
            **extra_weight_attrs,
        )

    def check(self, layer: RoutedExperts, intermediate_size: int) -> None:
        """Raises ConfigError for what the scheme has no place for: by default there is nothing.
        intermediate_size: channels of an expert on this rank."""

    def try_on(
        self, provider: providers.Provider, gate_up: tuple[int, int, int], dtype: torch.dtype
    ) -> None:
        """Raises Unsupported for what a provider other than native does not have.

        gate_up: shape of those projections, [experts, halves * intermediate, hidden].
        """
        raise providers.Unsupported("does not have quantized experts")

    def matrix(self, layer: RoutedExperts, name: str, expert: int) -> providers.Matrix:
        """[halves * intermediate, hidden], the gate first, or [hidden, intermediate]."""
        raise NotImplementedError

    def packed(self, layer: RoutedExperts, name: str, expert: int, parts: int) -> ops.PackedLinear:
        """The same, packed in parts: "w13" in as many as it has halves."""
        matrix = self.matrix(layer, name, expert)
        return ops.QuantizedLinear(*matrix._replace(parts=parts))

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        """Pack every expert and free the checkpoint's tensors.

        What stays has the shape of the weights and no memory, because the host asks for it.
        """
        with naming(layer):
            check_activation(layer)
            if self.in_turns and self.moe.activation == MoEActivation.SWIGLUOAI:
                gates_first(layer)
            experts, shapes = self.pack(layer)
        self.moe_quant_config = self.get_fused_moe_quant_config(layer)
        for name, _ in list(layer.named_parameters(recurse=False)):
            if name.startswith(("w13_", "w2_")) and not name.endswith("_bias"):
                setattr(layer, name, None)
        for name, out_features in shapes.items():
            empty = torch.empty(1).expand(layer.local_num_experts, out_features, 1)
            layer.register_parameter(name, torch.nn.Parameter(empty, requires_grad=False))
        self.moe_kernel = make_unquantized_moe_kernel(
            self.moe_quant_config,
            self.moe,
            UnquantizedMoeBackend.CPU,
            CpuExperts,
            layer._expert_routing_tables(),
        )
        self.moe_kernel.fused_experts.packed = experts

    def pack(self, layer: RoutedExperts) -> tuple[providers.Experts, dict[str, int]]:
        """The experts, and the output features of the parameters they came from."""
        gate_up, down = (
            [self.packed(layer, name, e, parts) for e in range(layer.local_num_experts)]
            for name, parts in (("w13", self.halves), ("w2", 1))
        )
        shapes = {"w13_weight": gate_up[0].out_features, "w2_weight": down[0].out_features}
        return ops.Experts(gate_up, down, ACTIVATIONS[self.moe.activation]), shapes

    def get_fused_moe_quant_config(self, layer: RoutedExperts) -> FusedMoEQuantConfig:
        """Biases; scales are in the packed weights."""
        return biased_moe_quant_config(*(self._bias(layer, name) for name in ("w13", "w2")))

    def _bias(self, layer: RoutedExperts, name: str) -> torch.Tensor | None:
        name += "_bias"
        if self.moe.has_bias or name in layer._loaded_expert_biases:
            bias: torch.Tensor = getattr(layer, name)
            return bias.to(self.moe.in_dtype)
        return None

    apply = UnquantizedFusedMoEMethod.forward_native


def check_activation(layer: RoutedExperts) -> None:
    """Raises ValueError for limits and factors that the op does not have."""
    wanted = SWIGLUOAI if ACTIVATIONS[layer.activation] == "swigluoai" else {}
    for name in SWIGLUOAI:
        value = getattr(layer, name, None)
        if value is not None and value != wanted.get(name):
            raise ValueError(
                f"experts of {layer.activation.value} with {name} {value} are not supported."
            )


def gates_first(layer: RoutedExperts) -> None:
    """w13 tensors [experts, 2 * intermediate, ...]: from gates and ups in turns to halves."""
    for name, tensor in layer.named_parameters(recurse=False):
        if name.startswith("w13_"):
            if tensor.shape[1] != 2 * layer.intermediate_size_per_partition:
                raise ValueError(f"gates and ups in turns are not supported along with {name}.")
            tensor.data = torch.cat((tensor.data[:, ::2], tensor.data[:, 1::2]), 1)


class UnquantizedExpertsMethod(ExpertsMethod):
    """Experts of fp32, bf16 or fp16 in their own dtype."""

    def packed(self, layer: RoutedExperts, name: str, expert: int, parts: int) -> ops.PackedLinear:
        """As loaded."""
        return ops.PackedLinear(getattr(layer, f"{name}_weight").detach()[expert], parts=parts)

    def try_on(
        self, provider: providers.Provider, gate_up: tuple[int, int, int], dtype: torch.dtype
    ) -> None:
        """Weights of zeros."""
        experts, rows, hidden = gate_up
        provider.experts(
            torch.zeros(gate_up, dtype=dtype),
            torch.zeros(experts, hidden, rows // self.halves, dtype=dtype),
            ACTIVATIONS[self.moe.activation],
        )

    def pack(self, layer: RoutedExperts) -> tuple[providers.Experts, dict[str, int]]:
        """By the chosen provider."""
        gate_up, down = layer.w13_weight.detach(), layer.w2_weight.detach()
        experts = providers.experts.make(
            str(gate_up.dtype),
            lambda provider: provider.experts(gate_up, down, ACTIVATIONS[self.moe.activation]),
        )
        return experts, {"w13_weight": gate_up.shape[1], "w2_weight": down.shape[1]}
