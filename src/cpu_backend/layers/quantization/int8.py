"""W8A8: int8 weights against int8 activations, as compressed-tensors and others store them."""

from __future__ import annotations

import torch

from cpu_backend.host.bases import RoutedExperts
from cpu_backend.host.quantized_bases import Int8ScaledMMLinearKernel, Int8ScaledMMLinearLayerConfig
from cpu_backend.layers.experts import ExpertsMethod
from cpu_backend.layers.quantization.packing import PackedKernel, naming, pack
from cpu_backend.ops import Activations, Codes, GroupScales, QuantizedLinear
from cpu_backend.providers import Matrix


class CpuInt8Linear(PackedKernel, Int8ScaledMMLinearKernel):
    """One integer product over all input channels, scaled by row and column."""

    @classmethod
    def can_implement(cls, c: Int8ScaledMMLinearLayerConfig) -> tuple[bool, str | None]:
        """Every combination that the host knows."""
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """weight int8 [out, in]; weight_scale [out, 1], or one per merged layer."""
        weight, scale, _, _, _ = self._get_layer_params(layer)
        scale = scale.float()
        if not self.config.is_channelwise and scale.numel() > 1:
            scale = torch.cat([scale[i].expand(w) for i, w in enumerate(layer.logical_widths)])
        with naming(layer):
            scales = scale.reshape(1, -1).expand(1, len(weight))
        matrix = matrix_of(weight.data, scales, self._activations(layer))
        self.packed = pack(layer, matrix, *self.layer_param_names[:4])

    def _activations(self, layer: torch.nn.Module) -> Activations:
        _, _, scale, zero, _ = self._get_layer_params(layer)
        symmetric = self.config.input_symmetric
        if not self.config.is_static_input_scheme:
            return Activations("int8_token" if symmetric else "int8_token_azp")
        assert scale is not None
        if symmetric:
            return Activations("int8_static", scale.max().item())
        # Merged layers have a range each: the one scale covers all of them.
        assert zero is not None
        zeros = zero.float()
        high = (scale * (127 - zeros)).max().item()
        low = (scale * (-128 - zeros)).min().item()
        merged = (high - low) / 255
        return Activations("int8_static_azp", merged, round(-128 - low / merged))


class Int8ExpertsMethod(ExpertsMethod):
    """int8 weights [experts, out, in], scales [experts, out, 1], activations scaled per token."""

    def matrix(self, layer: RoutedExperts, name: str, expert: int) -> QuantizedLinear:
        """As a linear layer's."""
        weight = getattr(layer, f"{name}_weight").data[expert]
        scale = getattr(layer, f"{name}_weight_scale").data[expert]
        return QuantizedLinear(*matrix_of(weight, scale.t(), Activations("int8_token")))


def matrix_of(weight: torch.Tensor, scales: torch.Tensor, activations: Activations) -> Matrix:
    """weight int8 [out, in], scales [1, out]."""
    in_features = weight.shape[1]
    groups = GroupScales(scales, in_features)
    return Matrix(Codes(weight, "bytes", 8, add=128), groups, in_features, activations)
