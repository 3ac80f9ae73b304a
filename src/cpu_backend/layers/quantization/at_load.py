"""``--quantization cpu_int8`` and ``cpu_int4``: any fp32, bf16 or fp16 checkpoint, quantized while
it is loaded.

cpu_int8   8-bit codes, symmetric, one fp16 scale per 128 input channels and column: 8.1 bits
cpu_int4   4-bit codes, per column an fp16 scale for 128 input channels and whole numbers, a step
           and a base, for each 32 of them: 4.6 bits.  The step is the best of several after a
           least-squares fit of the base.  Products meet 8-bit codes, step * code + base.  Kept in
           8 bits: the output layer, and every matrix whose 4-bit copy is off by more than
           KEEP_ABOVE (relative Frobenius norm), which outlier channels bring about.  With 4 bits
           in the output layer, too, the demo model's perplexity on three texts rose by 6 to 9 %.

Both multiply activations as 16-bit integers, scaled per row and up to 128 channels of a group.
With 8-bit ones (``CPU_BACKEND_ACTIVATIONS=int8``; the output layer's stay) the demo model's
perplexity rose by less than 1 %, but its answers changed.
Embedding tables, norms, routers and what is not a matrix stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cpu_backend.host.bases import (
    ColumnParallelLinear,
    FusedMoEConfig,
    LinearBase,
    ParallelLMHead,
    QuantizeMethodBase,
    RoutedExperts,
    RowParallelLinear,
    UnquantizedEmbeddingMethod,
    UnquantizedFusedMoEMethod,
    UnquantizedLinearMethod,
    register_quantization_config,
)
from cpu_backend.layers.experts import ExpertsMethod
from cpu_backend.layers.linear import parts_of
from cpu_backend.layers.quantization.packing import OwnConfig, weight_only_activations
from cpu_backend.ops import (
    Activations,
    Codes,
    GroupScales,
    QuantizedLinear,
    quantize_weight,
)

GROUP = 128
KEEP_ABOVE = 0.10

Pack = Callable[[torch.Tensor, int], QuantizedLinear]  # a weight, in so many parts


def pack_int8(weight: torch.Tensor, parts: int = 1, float_output: bool = False) -> QuantizedLinear:
    """weight [out, in], packed as the module's head says."""
    group = min(GROUP, weight.shape[1])
    codes, scales, _, _ = quantize_weight(weight, 8, group)
    return QuantizedLinear(
        Codes(codes, "bytes", 8),
        GroupScales(scales.t(), group),
        weight.shape[1],
        Activations("int16") if float_output else weight_only_activations(),
        parts,
        float_output,
    )


def pack_int4(weight: torch.Tensor, parts: int = 1) -> QuantizedLinear:
    """weight [out, in], packed as the module's head says: 8 bits where 4 lose too much."""
    group = min(GROUP, weight.shape[1])
    codes, scales, levels, error = quantize_weight(weight, 4, group)
    if error > KEEP_ABOVE:
        return pack_int8(weight, parts)
    return QuantizedLinear(
        Codes(codes, "bytes", 4),
        GroupScales(scales.t(), group, levels.t(), "levels"),
        weight.shape[1],
        weight_only_activations(),
        parts,
    )


class AtLoadLinearMethod(UnquantizedLinearMethod):
    """A linear layer whose weight is read like an unquantized one and packed quantized."""

    def __init__(self, pack: Pack) -> None:
        super().__init__()
        self._pack = pack

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Quantize, pack, free the original."""
        weight = layer.weight
        if getattr(layer, "_cpu_skip_gemm_dispatch", False):
            super().process_weights_after_loading(layer)
            return
        layer.cpu_linear = self._pack(weight.detach(), parts_of(layer))
        layer.weight = torch.nn.Parameter(weight.new_empty(0), requires_grad=False)


class AtLoadHeadMethod(UnquantizedEmbeddingMethod):
    """The output layer, always in 8 bits; a tied embedding table keeps its own weight."""

    def tie_weights(self, layer: torch.nn.Module, embed_tokens: torch.nn.Module) -> Any:
        """Shared until this layer is packed."""
        embed_tokens.cpu_only_table = True
        return super().tie_weights(layer, embed_tokens)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Quantize and pack; logits are fp32.

        What stays equals nothing: the host shares the target's output layer with a draft model
        whose own has the same weight, as any two that are empty have.
        """
        weight = layer.weight
        if weight.is_meta:  # of a model that embeds: nobody asks for logits
            return
        layer.cpu_linear = pack_int8(weight.detach(), float_output=True)
        nothing = weight.new_full((1,), float("nan"))
        layer.weight = torch.nn.Parameter(nothing, requires_grad=False)


class AtLoadExpertsMethod(ExpertsMethod, UnquantizedFusedMoEMethod):
    """A mixture of experts, each of whose matrices is packed like a linear layer's."""

    def __init__(self, moe: FusedMoEConfig, pack: Pack) -> None:
        super().__init__(moe)
        self._pack = pack

    def packed(self, layer: RoutedExperts, name: str, expert: int, parts: int) -> QuantizedLinear:
        """Quantized here."""
        return self._pack(getattr(layer, f"{name}_weight").detach()[expert], parts)


class AtLoadConfig(OwnConfig):
    """What both share: no configuration in the checkpoint."""

    pack: Pack

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> AtLoadConfig:
        return cls()

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        if isinstance(layer, LinearBase):
            return AtLoadLinearMethod(type(self).pack)
        if isinstance(layer, ParallelLMHead):
            return AtLoadHeadMethod()
        if isinstance(layer, RoutedExperts):
            return AtLoadExpertsMethod(layer.moe_config, type(self).pack)
        return None


class AtLoadInt8Config(AtLoadConfig):
    """``--quantization cpu_int8``"""

    name = "cpu_int8"
    pack = staticmethod(pack_int8)


class AtLoadInt4Config(AtLoadConfig):
    """``--quantization cpu_int4``"""

    name = "cpu_int4"
    pack = staticmethod(pack_int4)


def reach_all_layers(model: torch.nn.Module, config: AtLoadConfig) -> None:
    """Give ``config`` to the layers that ``model`` made without it, before weights are read.

    Left alone are what stands outside of the language model (towers of images), what every rank
    has whole (routers and indexers, which choose), and convolutions, whose weights are no matrices.
    """
    language_model = getattr(model, "get_language_model", lambda: model)()
    for module in language_model.modules():
        method = type(getattr(module, "quant_method", None))
        linear = (
            method is UnquantizedLinearMethod
            and isinstance(module, ColumnParallelLinear | RowParallelLinear)
            and not module.disable_tp
            and module.weight.dim() == 2
        )
        if linear or (method is UnquantizedEmbeddingMethod and isinstance(module, ParallelLMHead)):
            module.quant_method = config.get_quant_method(module, "")


def register() -> None:
    """Make both names known to the host."""
    for config in (AtLoadInt8Config, AtLoadInt4Config):
        register_quantization_config(config.name)(config)
