"""Weight-only integers: what the host's mixed-precision registry hands over.

compressed-tensors' pack-quantized (WNA16) and int4-with-int8-activations (W4A8) checkpoints come
this way, and any other the host brings into one of these forms.
"""

from __future__ import annotations

import torch

from cpu_backend import envs
from cpu_backend.host.bases import RoutedExperts
from cpu_backend.host.quantized_bases import (
    MPLinearKernel,
    MPLinearLayerConfig,
    ScalarType,
    scalar_types,
)
from cpu_backend.layers.experts import ExpertsMethod
from cpu_backend.layers.quantization.packing import (
    PackedKernel,
    pack,
    rehearse,
    unpack_rows,
    weight_only_activations,
)
from cpu_backend.ops import Activations, Codes, GroupScales, kept_bits
from cpu_backend.providers import Matrix


def _is_unsigned(kind: ScalarType) -> bool:
    return bool(kind.is_integer() and not kind.is_signed() and 2 <= kind.size_bits <= 8)


class CpuWeightOnlyLinear(PackedKernel, MPLinearKernel):
    """Codes of 2 to 8 bits with scales per group, and zero points if any."""

    def __init__(self, c: MPLinearLayerConfig, *names: str, **named: str | None) -> None:
        in_features, out_features = c.partition_weight_shape
        for_int8 = c.weight_type == scalar_types.int4
        rehearse(
            (out_features, in_features),
            kept_bits(c.weight_type.size_bits),
            c.group_size,
            "int8_token" if for_int8 else envs.activations(),
            c.act_type,
            zeros=c.zero_points,
        )
        super().__init__(c, *names, **named)

    @classmethod
    def get_min_capability(cls) -> int:
        """None: this is no GPU."""
        return -1

    @classmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]:
        """Unsigned codes with a bias or zero points, and int4 for int8 activations."""
        if _is_unsigned(c.weight_type):
            if not (c.zero_points or c.weight_type.has_bias()):
                return False, f"weights of type {c.weight_type} need zero points"
            return True, None
        if c.weight_type == scalar_types.int4 and not c.zero_points:
            return True, None
        return False, f"weights of type {c.weight_type} are not integers of 2 to 8 bits"

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Packed straight from the words of the checkpoint, whichever way they run."""
        weight, scale, zero = self._get_weight_params(layer)
        kind = self.config.weight_type
        in_features, _ = self.config.partition_weight_shape
        scales = scale.data if scale.output_dim == 1 else scale.data.t()
        group = in_features if self.config.group_size == -1 else self.config.group_size
        if kind == scalar_types.int4:
            matrix = matrix_for_int8(weight.data, scales, group)
        else:
            words = weight.data if weight.input_dim == 1 else weight.data.t()
            zeros = None
            if self.config.zero_points:
                assert zero is not None
                zeros = zero.data.t() if zero.output_dim == 0 else zero.data
            matrix = matrix_of_words(
                words, kind.size_bits, kind.bias, scales, zeros, group, in_features
            )
        names = [self.w_q_name, self.w_s_name, *([self.w_zp_name] if self.w_zp_name else [])]
        pack(layer, matrix, *(name for name in names if hasattr(layer, name)))


class WeightOnlyExpertsMethod(ExpertsMethod):
    """compressed-tensors' pack-quantized experts: the tensors of a linear layer for each."""

    num_bits: int  # these are the host's
    group_size: int
    symmetric: bool

    def matrix(self, layer: RoutedExperts, name: str, expert: int) -> Matrix:
        """weight_packed int32 [out, words], weight_scale [out, groups], weight_zero_point int32
        [out * bits / 32, groups]."""
        words = getattr(layer, f"{name}_weight_packed").data[expert]
        scales = getattr(layer, f"{name}_weight_scale").data[expert].t()
        in_features = words.shape[1] * 32 // self.num_bits
        zeros = None
        if not self.symmetric:
            zeros = getattr(layer, f"{name}_weight_zero_point").data[expert].t()
        return matrix_of_words(
            words,
            self.num_bits,
            2 ** (self.num_bits - 1),
            scales,
            zeros,
            in_features if self.group_size == -1 else self.group_size,
            in_features,
        )


class W4A8ExpertsMethod(ExpertsMethod):
    """The same for int4 with int8 activations."""

    def matrix(self, layer: RoutedExperts, name: str, expert: int) -> Matrix:
        """weight int8 [out, in], a code in each; weight_scale [out, groups]."""
        weight = getattr(layer, f"{name}_weight").data[expert]
        scales = getattr(layer, f"{name}_weight_scale").data[expert]
        group = weight.shape[1] // scales.shape[1]
        return matrix_for_int8(weight, scales.t(), group)


def matrix_for_int8(weight: torch.Tensor, scales: torch.Tensor, group: int) -> Matrix:
    """weight int8 [out, in], -8 to 7; scales [groups, out]."""
    codes, groups = Codes(weight, "bytes", 4, add=8), GroupScales(scales, group)
    return Matrix(codes, groups, weight.shape[1], Activations("int8_token"))


def matrix_of_words(
    words: torch.Tensor,
    bits: int,
    bias: int,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    group: int,
    in_features: int,
) -> Matrix:
    """words int32 [out, in_features * bits / 32], scales [groups, out], zeros int32 [groups,
    out * bits / 32]; without zeros a code stands for code - bias."""
    add = 2 ** (kept_bits(bits) - 1) - bias
    if zeros is not None:
        zeros = unpack_rows(zeros, bits, scales.shape[1]).to(scales.dtype)
        add = 0
    return Matrix(
        Codes(words, "words_of_k", bits, add),
        GroupScales(scales, group, zeros),
        in_features,
        weight_only_activations(),
    )
