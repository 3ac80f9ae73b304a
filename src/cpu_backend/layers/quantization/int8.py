"""W8A8: int8 weights against int8 activations, as compressed-tensors and others store them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cpu_backend.host.bases import RoutedExperts
from cpu_backend.host.quantized_bases import Int8ScaledMMLinearKernel, Int8ScaledMMLinearLayerConfig
from cpu_backend.layers.experts import ExpertsMethod
from cpu_backend.layers.quantization.packing import PackedKernel, naming, pack, rehearse
from cpu_backend.ops import Activations, Codes, GroupScales
from cpu_backend.providers import Matrix


class CpuInt8Linear(PackedKernel, Int8ScaledMMLinearKernel):
    """One integer product over all input channels, scaled by row and column."""

    def __init__(self, c: Int8ScaledMMLinearLayerConfig, layer_param_names: Sequence[str]) -> None:
        super().__init__(c, layer_param_names)
        # The host does not say the layer's shape; no provider asks for it.
        rehearse((64, 64), 8, -1, self._activations_kind, torch.bfloat16, stored=torch.int8)

    @property
    def _activations_kind(self) -> str:
        when = "static" if self.config.is_static_input_scheme else "token"
        return f"int8_{when}" if self.config.input_symmetric else f"int8_{when}_azp"

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
        pack(layer, matrix, *self.layer_param_names[:4])

    def _activations(self, layer: torch.nn.Module) -> Activations:
        _, _, scale, zero, _ = self._get_layer_params(layer)
        kind = self._activations_kind
        if not self.config.is_static_input_scheme:
            return Activations(kind)
        assert scale is not None
        if self.config.input_symmetric:
            return Activations(kind, scale.max().item())
        # Merged layers have a range each: the one scale covers all of them.
        assert zero is not None
        zeros = zero.float()
        high = (scale * (127 - zeros)).max().item()
        low = (scale * (-128 - zeros)).min().item()
        merged = (high - low) / 255
        return Activations(kind, merged, round(-128 - low / merged))


class Int8ExpertsMethod(ExpertsMethod):
    """int8 weights [experts, out, in], scales [experts, out, 1], activations scaled per token."""

    def matrix(self, layer: RoutedExperts, name: str, expert: int) -> Matrix:
        """As a linear layer's."""
        weight = getattr(layer, f"{name}_weight").data[expert]
        scale = getattr(layer, f"{name}_weight_scale").data[expert]
        return matrix_of(weight, scale.t(), Activations("int8_token"))


def matrix_of(weight: torch.Tensor, scales: torch.Tensor, activations: Activations) -> Matrix:
    """weight int8 [out, in], scales [1, out]."""
    in_features = weight.shape[1]
    groups = GroupScales(scales, in_features)
    return Matrix(Codes(weight, "bytes", 8, add=128), groups, in_features, activations)
