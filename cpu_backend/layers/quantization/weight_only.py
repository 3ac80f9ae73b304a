"""Weight-only integers: what the host's mixed-precision registry hands over.

compressed-tensors' pack-quantized (WNA16) and int4-with-int8-activations (W4A8) checkpoints come
this way, and any other the host brings into one of these forms.
"""

from __future__ import annotations

import torch
from vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel import (
    MPLinearKernel,
    MPLinearLayerConfig,
)
from vllm.scalar_type import ScalarType, scalar_types

from cpu_backend.layers.quantization.packing import (
    PackedKernel,
    kept_bits,
    pack,
    unpack_rows,
    weight_only_activations,
)
from cpu_backend.ops import Activations, Codes, GroupScales


def _is_unsigned(kind: ScalarType) -> bool:
    return bool(kind.is_integer() and not kind.is_signed() and 2 <= kind.size_bits <= 8)


class CpuWeightOnlyLinear(PackedKernel, MPLinearKernel):
    """Codes of 2 to 8 bits with scales per group, and zero points if any."""

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
        in_features, out_features = self.config.partition_weight_shape
        scales = scale.data if scale.output_dim == 1 else scale.data.t()
        group = in_features if self.config.group_size == -1 else self.config.group_size
        zeros = None
        if kind == scalar_types.int4:
            codes = Codes(weight.data, "bytes", 4, add=8)
            activations = Activations("int8_token")
        else:
            bits = kind.size_bits
            words = weight.data if weight.input_dim == 1 else weight.data.t()
            middle = 0 if self.config.zero_points else 2 ** (kept_bits(bits) - 1) - kind.bias
            codes = Codes(words, "words_of_k", bits, add=middle)
            activations = weight_only_activations()
            if self.config.zero_points:
                assert zero is not None
                rows = zero.data.t() if zero.output_dim == 0 else zero.data
                zeros = unpack_rows(rows, bits, out_features).to(scales.dtype)
        names = [self.w_q_name, self.w_s_name, *([self.w_zp_name] if self.w_zp_name else [])]
        self.packed = pack(
            layer,
            codes,
            GroupScales(scales, group, zeros),
            in_features,
            activations,
            *(name for name in names if hasattr(layer, name)),
        )
