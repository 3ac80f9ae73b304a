"""AWQ checkpoints, packed from their own order of codes.

The host would first unpack them to one int32 per weight, several times their size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.model_executor.layers.linear import register_weight_loader_v2_supported_method
from vllm.model_executor.layers.quantization.auto_awq import (
    AutoAWQConfig,
    AutoAWQMarlinLinearMethod,
)

from cpu_backend.layers.quantization.packing import pack, unpack_rows, weight_only_activations
from cpu_backend.ops import Codes, GroupScales, QuantizedLinear

if TYPE_CHECKING:
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # nibble of each of the eight columns in a word


class CpuAWQConfig(AutoAWQConfig):
    """The host's reader, with this backend's linear method."""

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        """All of this backend's."""
        return [torch.half, torch.bfloat16, torch.float32]

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """What the host chooses, except that its linear method becomes this backend's."""
        method: QuantizeMethodBase | None = super().get_quant_method(layer, prefix)
        return CpuAWQLinearMethod(self) if type(method) is AutoAWQMarlinLinearMethod else method


@register_weight_loader_v2_supported_method
class CpuAWQLinearMethod(AutoAWQMarlinLinearMethod):
    """qweight int32 [in, out / 8], scales [groups, out], qzeros int32 [groups, out / 8]."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Pack and free the checkpoint's tensors."""
        scales = layer.scales.data
        groups, out_features = scales.shape
        in_features = layer.qweight.shape[0]
        zeros = None
        if self.quant_config.zero_point:
            codes = unpack_rows(layer.qzeros.data, 4, out_features)
            zeros = codes.view(groups, -1, 8)[:, :, ORDER].reshape(groups, -1).to(scales.dtype)
        size = self.quant_config.group_size
        self.packed: QuantizedLinear = pack(
            layer,
            Codes(layer.qweight.data, "words_of_n_awq", 4),
            GroupScales(scales, in_features if size == -1 else size, zeros),
            in_features,
            weight_only_activations(),
            "qweight",
            "qzeros",
            "scales",
        )

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [..., in] to [..., out] in x's dtype."""
        return self.packed(x, None, bias)
