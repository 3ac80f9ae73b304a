"""AWQ checkpoints, packed from their own order of codes.

The host would first unpack them to one int32 per weight, several times their size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from cpu_backend.host.bases import (
    RoutedExperts,
    UnquantizedFusedMoEMethod,
    is_layer_skipped,
    register_weight_loader_v2_supported_method,
)
from cpu_backend.host.quantized_bases import (
    AutoAWQConfig,
    AutoAWQMarlinLinearMethod,
    AutoAWQMoEMethod,
)
from cpu_backend.layers.experts import ExpertsMethod
from cpu_backend.layers.quantization.packing import pack, run, unpack_rows, weight_only_activations
from cpu_backend.ops import Codes, GroupScales
from cpu_backend.providers import Matrix

if TYPE_CHECKING:
    from cpu_backend.host.bases import QuantizeMethodBase

ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # nibble of each of the eight columns in a word


class CpuAWQConfig(AutoAWQConfig):
    """The host's reader, with this backend's linear method."""

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        """All of this backend's."""
        return [torch.half, torch.bfloat16, torch.float32]

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """What the host chooses, except that its methods become this backend's.

        Of experts it would ask what its kernels for GPUs can do.
        """
        if isinstance(layer, RoutedExperts):
            if is_layer_skipped(prefix, self.modules_to_not_convert, match_mode="substring"):
                return UnquantizedFusedMoEMethod(layer.moe_config)
            return AutoAWQMoEMethod(self, layer.moe_config)
        method: QuantizeMethodBase | None = super().get_quant_method(layer, prefix)
        return CpuAWQLinearMethod(self) if type(method) is AutoAWQMarlinLinearMethod else method


@register_weight_loader_v2_supported_method
class CpuAWQLinearMethod(AutoAWQMarlinLinearMethod):
    """qweight int32 [in, out / 8], scales [groups, out], qzeros int32 [groups, out / 8]."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Pack and free the checkpoint's tensors."""
        matrix = matrix_of(self.quant_config, layer.qweight, layer.scales, layer.qzeros)
        pack(layer, matrix, "qweight", "qzeros", "scales")

    apply = staticmethod(run)


class AWQExpertsMethod(ExpertsMethod):
    """The same tensors with the experts in front."""

    def matrix(self, layer: RoutedExperts, name: str, expert: int) -> Matrix:
        """From the checkpoint's words."""
        tensors = (getattr(layer, f"{name}_{part}") for part in ("qweight", "scales", "qzeros"))
        return matrix_of(self.quant_config, *(t[expert] for t in tensors))


def matrix_of(
    config: AutoAWQConfig, qweight: torch.Tensor, scales: torch.Tensor, qzeros: torch.Tensor
) -> Matrix:
    """qweight int32 [in, out / 8], scales [groups, out], qzeros int32 [groups, out / 8]."""
    groups, out_features = scales.shape
    in_features = qweight.shape[0]
    zeros = None
    if config.zero_point:
        codes = unpack_rows(qzeros.data, 4, out_features)
        zeros = codes.view(groups, -1, 8)[:, :, ORDER].reshape(groups, -1).to(scales.dtype)
    return Matrix(
        Codes(qweight.data, "words_of_n_awq", 4),
        GroupScales(
            scales.data, in_features if config.group_size == -1 else config.group_size, zeros
        ),
        in_features,
        weight_only_activations(),
    )
