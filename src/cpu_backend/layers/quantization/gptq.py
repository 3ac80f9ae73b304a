"""GPTQ checkpoints: 2, 3, 4 and 8 bits, symmetric or with zero points, any activation order.

The host's own reader takes 4 and 8 bits, symmetric, without activation order inside groups.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from cpu_backend import envs
from cpu_backend.errors import ConfigError
from cpu_backend.host.bases import (
    ChannelQuantScaleParameter,
    GroupQuantScaleParameter,
    LinearMethodBase,
    PackedColumnParameter,
    PackedvLLMParameter,
    RoutedExperts,
    RowvLLMParameter,
    register_weight_loader_v2_supported_method,
)
from cpu_backend.host.quantized_bases import (
    AutoGPTQConfig,
    AutoGPTQMoEMethod,
    ScalarType,
    get_linear_quant_method,
    get_moe_quant_method,
    scalar_types,
)
from cpu_backend.layers.experts import ExpertsMethod
from cpu_backend.layers.quantization.packing import (
    pack,
    recentred,
    rehearse,
    run,
    unpack_rows,
    weight_only_activations,
)
from cpu_backend.ops import Codes, GroupScales, kept_bits
from cpu_backend.providers import Matrix

if TYPE_CHECKING:
    from cpu_backend.host.bases import QuantizeMethodBase
    from cpu_backend.host.quantized_bases import WeightsMapper

BITS = (2, 3, 4, 8)


class CpuGPTQConfig(AutoGPTQConfig):
    """The host's reader without its limits."""

    # Only its keys are looked at here: the packed form does not depend on a kernel's types.
    TYPE_MAP: ClassVar[dict[tuple[int, bool], ScalarType]] = {
        (bits, sym): scalar_types.uint8b128 for bits in BITS for sym in (False, True)
    }

    def __init__(
        self,
        weight_bits: int,
        group_size: int,
        desc_act: bool,
        is_sym: bool,
        lm_head_quantized: bool,
        dynamic: dict[str, dict[str, int | bool]],
        full_config: dict[str, Any],
        modules_in_block_to_quantize: list[str] | None = None,
    ) -> None:
        if weight_bits not in BITS:
            raise ConfigError(f"GPTQ checkpoints of {weight_bits} bits are not known: {BITS}.")
        # The host refuses activation order where it validates; here it costs a list per layer.
        super().__init__(weight_bits, group_size, False, is_sym, lm_head_quantized, {}, full_config)
        self.desc_act = desc_act and group_size != -1
        self.dynamic = dynamic
        self.modules_in_block_to_quantize = modules_in_block_to_quantize or []
        self.zeros_are_stored_less_one = full_config.get("checkpoint_format") != "gptq_v2"

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        """All of this backend's."""
        return [torch.half, torch.bfloat16, torch.float32]

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """Linear layers, experts and a quantized lm_head; others as the host has them."""
        if isinstance(layer, RoutedExperts):  # the host asks what its kernels for GPUs can do
            if self.desc_act:
                raise ConfigError(
                    "GPTQ checkpoints of mixtures of experts in activation order (desc_act) are "
                    "not supported: quantize without desc_act."
                )
            return get_moe_quant_method(self, layer, prefix, AutoGPTQMoEMethod)
        method = get_linear_quant_method(self, layer, prefix, CpuGPTQLinearMethod)
        return method if method is not None else super().get_quant_method(layer, prefix)

    def get_checkpoint_weight_mapper(self) -> WeightsMapper:
        """The host drops the order of channels, which it does not need."""
        from cpu_backend.host.quantized_bases import WeightsMapper

        if self.desc_act or any(rule.get("desc_act") for rule in self.dynamic.values()):
            return WeightsMapper()
        return AutoGPTQConfig.get_checkpoint_weight_mapper()


class ChannelGroups(RowvLLMParameter):
    """g_idx of a layer, which its parts (queries, keys and values; gate and up) share.

    They read the same activations, whose magnitudes give the order, so GPTQ orders them alike.
    """

    is_loaded = False

    def _assert_and_load(self, loaded_weight: torch.Tensor) -> None:
        if self.is_loaded and not torch.equal(self.data, loaded_weight.to(self.data)):
            raise ConfigError(
                "The GPTQ checkpoint orders the channels of layers that are merged here "
                "(q_proj, k_proj, v_proj or gate_proj, up_proj) differently (g_idx): "
                "quantize them in one step, or without desc_act."
            )
        super()._assert_and_load(loaded_weight)
        self.is_loaded = True


@register_weight_loader_v2_supported_method
class CpuGPTQLinearMethod(LinearMethodBase):
    """qweight int32 [in * bits / 32, out], scales [groups, out], qzeros [groups, out * bits / 32],
    and with activation order g_idx [in], the group of each channel."""

    def __init__(self, quant_config: CpuGPTQConfig) -> None:
        self.config = quant_config
        self.bits = quant_config.weight_bits

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Parameters as the checkpoint has them."""
        loader: Callable[..., None] | None = extra_weight_attrs.get("weight_loader")
        out_features = sum(output_partition_sizes)
        self.in_features = input_size_per_partition
        self.group = input_size if self.config.group_size == -1 else self.config.group_size
        rehearse(
            (out_features, input_size_per_partition),
            kept_bits(self.bits),
            self.group,
            envs.activations(),
            params_dtype,
            zeros=not self.config.is_sym,
        )
        # Channels of one rank belong to any group when they are out of order.
        whole = input_size != input_size_per_partition and (
            self.config.group_size == -1 or self.config.desc_act
        )
        groups = -(-(input_size if whole else input_size_per_partition) // self.group)
        packed = {"packed_factor": Fraction(32, self.bits), "weight_loader": loader}
        layer.register_parameter(
            "qweight",
            PackedvLLMParameter(
                data=torch.empty(
                    input_size_per_partition * self.bits // 32, out_features, dtype=torch.int32
                ),
                input_dim=0,
                output_dim=1,
                packed_dim=0,
                **packed,
            ),
        )
        zeros = torch.empty(groups, out_features * self.bits // 32, dtype=torch.int32)
        scales = torch.empty(groups, out_features, dtype=params_dtype)
        if whole:
            layer.register_parameter(
                "qzeros", PackedColumnParameter(data=zeros, output_dim=1, packed_dim=1, **packed)
            )
            layer.register_parameter(
                "scales",
                ChannelQuantScaleParameter(data=scales, output_dim=1, weight_loader=loader),
            )
        else:
            layer.register_parameter(
                "qzeros",
                PackedvLLMParameter(data=zeros, input_dim=0, output_dim=1, packed_dim=1, **packed),
            )
            layer.register_parameter(
                "scales",
                GroupQuantScaleParameter(
                    data=scales, input_dim=0, output_dim=1, weight_loader=loader
                ),
            )
        if self.config.desc_act:
            order = torch.arange(input_size_per_partition, dtype=torch.int32) // self.group
            layer.register_parameter(
                "g_idx", ChannelGroups(data=order, input_dim=0, weight_loader=loader)
            )

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Pack; channels out of order are sorted by group, here and for the activations."""
        scales = layer.scales.data
        group, channels = min(self.group, self.in_features), None
        if self.config.desc_act:
            group, channels = order_of_channels(layer.g_idx.data, scales.shape[0])
        matrix = matrix_of(self.config, layer.qweight, scales, layer.qzeros, group, channels)
        freed = ["qweight", "qzeros", "scales"] + ["g_idx"] * self.config.desc_act
        pack(layer, matrix, *freed)

    apply = staticmethod(run)


class GPTQExpertsMethod(ExpertsMethod):
    """The same tensors with the experts in front."""

    quant_config: CpuGPTQConfig  # the host's

    def matrix(self, layer: RoutedExperts, name: str, expert: int) -> Matrix:
        """From the checkpoint's words."""
        config = self.quant_config
        parts = ("qweight", "scales", "qzeros")
        qweight, scales, qzeros = (getattr(layer, f"{name}_{p}").data[expert] for p in parts)
        in_features = qweight.shape[0] * 32 // config.weight_bits
        group = in_features if config.group_size == -1 else config.group_size
        return matrix_of(config, qweight, scales, qzeros, group, None)


def matrix_of(
    config: CpuGPTQConfig,
    qweight: torch.Tensor,
    scales: torch.Tensor,
    qzeros: torch.Tensor,
    group: int,
    channels: torch.Tensor | None,
) -> Matrix:
    """qweight int32 [in * bits / 32, out], scales [groups, out], qzeros int32 [groups, out * bits /
    32]; ``channels`` as in GroupScales."""
    bits = config.weight_bits
    zeros, add = None, recentred(bits)
    if not config.is_sym:
        codes = unpack_rows(qzeros.data, bits, scales.shape[1])
        zeros, add = (codes + config.zeros_are_stored_less_one).to(scales.dtype), 0
    return Matrix(
        Codes(qweight.data.t(), "words_of_k", bits, add),
        GroupScales(scales, group, zeros, channels=channels),
        qweight.shape[0] * 32 // bits,
        weight_only_activations(),
    )


def order_of_channels(groups_of: torch.Tensor, groups: int) -> tuple[int, torch.Tensor | None]:
    """Size of a group and the channels of each in turn, int32, -1 where one has fewer.

    groups_of [in]: the group of each channel.  No list is needed where they are in order.
    """
    in_features = groups_of.numel()
    counts = groups_of.bincount(minlength=groups)
    size = int(counts.max())
    if torch.equal(groups_of, torch.arange(in_features, dtype=groups_of.dtype) // size):
        return size, None
    channels = torch.full((groups, size), -1, dtype=torch.int32)
    order = groups_of.long().argsort(stable=True)
    starts = counts.cumsum(0) - counts
    place = torch.arange(in_features) - starts.repeat_interleave(counts)
    channels[groups_of.long()[order], place] = order.int()
    return size, channels.flatten()
