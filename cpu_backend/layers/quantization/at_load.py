"""``--quantization cpu_int8`` and ``cpu_int4``: any fp32, bf16 or fp16 checkpoint, quantized while
it is loaded.

cpu_int8   8-bit codes, symmetric, one fp16 scale per 128 input channels and column: 8.1 bits
cpu_int4   4-bit codes, an fp16 scale and offset per 32 input channels and column: 5 bits.  Each
           group takes the best of several ranges after a least-squares fit of scale and offset.
           Kept in 8 bits: the output layer, and every matrix whose 4-bit copy is off by more than
           KEEP_ABOVE (relative Frobenius norm), which outlier channels bring about.

Both multiply activations as 16-bit integers, scaled per row and up to 128 channels of a group.
With 8-bit ones (``CPU_BACKEND_ACTIVATIONS=int8``; the output layer's stay) the demo model's
perplexity rose by less than 1 %, but its answers changed.
Embedding tables, norms and what is not a matrix stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)

from cpu_backend.layers.quantization.packing import OwnConfig, weight_only_activations
from cpu_backend.ops import Activations, Codes, GroupScales, QuantizedLinear

logger = init_logger("vllm.cpu_backend")

INT8_GROUP, INT4_GROUP = 128, 32
KEEP_ABOVE = 0.10
# Shares of a group's range that 16 levels are tried on: clipping the ends makes the steps finer.
RANGES = (1.0, 0.92, 0.84, 0.76)
_CHUNK_ELEMENTS = 1 << 22  # quantized at a time, so that fp32 copies stay small


def _grouped(rows: torch.Tensor, size: int) -> torch.Tensor:
    """[out, in] as fp32 [out, groups, size]; a short last group repeats its last channel."""
    short = -rows.shape[1] % size
    if short:
        rows = torch.cat([rows, rows[:, -1:].expand(-1, short)], dim=1)
    return rows.float().unflatten(1, (-1, size))


def _by_chunks(
    weight: torch.Tensor, quantize: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
) -> list[torch.Tensor]:
    """``quantize`` over blocks of rows, its results joined."""
    rows = max(1, _CHUNK_ELEMENTS // weight.shape[1])
    parts = [quantize(block) for block in weight.split(rows)]
    return [torch.cat(part) for part in zip(*parts, strict=True)]


def quantize_int8(
    weight: torch.Tensor, group: int = INT8_GROUP
) -> tuple[torch.Tensor, torch.Tensor]:
    """weight [out, in] to codes [out, in] uint8 and scales [out, groups] fp16:
    weight = scale * (code - 128)."""

    def quantize(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = _grouped(rows, group)
        scales = (values.abs().amax(-1) / 127).half()
        steps = scales.float().clamp(min=torch.finfo(torch.half).tiny)[..., None]
        codes = (values / steps).round_().clamp_(-127, 127).add_(128).to(torch.uint8)
        return codes.flatten(1)[:, : rows.shape[1]], scales

    codes, scales = _by_chunks(weight, quantize)
    return codes, scales


def quantize_int4(
    weight: torch.Tensor, group: int = INT4_GROUP
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """weight [out, in] to codes [out, in] uint8 (0 to 15), scales and offsets [out, groups] fp16,
    and the relative error: weight = scale * code + offset."""

    def quantize(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = _grouped(rows, group)
        low, high = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
        middle, half_range = (low + high) / 2, (high - low) / 2
        best: tuple[torch.Tensor, ...] = ()
        for share in RANGES:
            start = middle - share * half_range
            step = (share * half_range / 7.5).clamp(min=1e-12)
            codes = ((values - start) / step).round_().clamp_(0, 15)
            scale, offset = _fit(codes, values)
            error = (codes * scale + offset - values).square_().sum(-1, keepdim=True)
            found = (error, codes, scale, offset)
            if best:
                better = error < best[0]
                found = tuple(
                    torch.where(better, new, old) for new, old in zip(found, best, strict=True)
                )
            best = found
        error, codes, scale, offset = best
        total = torch.stack([error.sum(), values.square().sum()])[None]
        codes = codes.to(torch.uint8).flatten(1)[:, : rows.shape[1]]
        return codes, scale.squeeze(-1).half(), offset.squeeze(-1).half(), total

    codes, scales, offsets, totals = _by_chunks(weight, quantize)
    lost, all_of_it = totals.sum(0).tolist()
    return codes, scales, offsets, (lost / all_of_it) ** 0.5 if all_of_it else 0.0


def _fit(codes: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Least squares over the last dimension: scale and offset as fp16 will hold them."""
    mean_code, mean_value = codes.mean(-1, keepdim=True), values.mean(-1, keepdim=True)
    spread = codes - mean_code
    scale = (spread * values).sum(-1, keepdim=True) / spread.square().sum(-1, keepdim=True).clamp(
        min=1e-12
    )
    scale = scale.half().float()
    return scale, (mean_value - scale * mean_code).half().float()


def pack_int8(weight: torch.Tensor, float_output: bool = False) -> QuantizedLinear:
    """weight [out, in], packed as the module's head says."""
    group = min(INT8_GROUP, weight.shape[1])
    codes, scales = quantize_int8(weight, group)
    return QuantizedLinear(
        Codes(codes, "bytes", 8),
        GroupScales(scales.t(), group),
        weight.shape[1],
        Activations("int16") if float_output else weight_only_activations(),
        float_output,
    )


def pack_int4(weight: torch.Tensor) -> QuantizedLinear:
    """weight [out, in], packed as the module's head says: 8 bits where 4 lose too much."""
    group = min(INT4_GROUP, weight.shape[1])
    codes, scales, offsets, error = quantize_int4(weight, group)
    if error > KEEP_ABOVE:
        return pack_int8(weight)
    return QuantizedLinear(
        Codes(codes, "bytes", 4),
        GroupScales(scales.t(), group, offsets.t(), offsets=True),
        weight.shape[1],
        weight_only_activations(),
    )


class AtLoadLinearMethod(UnquantizedLinearMethod):
    """A linear layer whose weight is read like an unquantized one and packed quantized."""

    def __init__(self, pack: Callable[[torch.Tensor], QuantizedLinear]) -> None:
        super().__init__()
        self._pack = pack

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Quantize, pack, free the original."""
        weight = layer.weight
        if getattr(layer, "_cpu_skip_gemm_dispatch", False):
            super().process_weights_after_loading(layer)
            return
        layer.cpu_linear = self._pack(weight.detach())
        layer.weight = torch.nn.Parameter(weight.new_empty(0), requires_grad=False)


class AtLoadHeadMethod(UnquantizedEmbeddingMethod):
    """The output layer, always in 8 bits; a tied embedding table keeps its own weight."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Quantize and pack; logits are fp32."""
        weight = layer.weight
        layer.cpu_linear = pack_int8(weight.detach(), float_output=True)
        layer.weight = torch.nn.Parameter(weight.new_empty(0), requires_grad=False)


class _AtLoadConfig(OwnConfig):
    """What both share: no configuration in the checkpoint."""

    pack: Callable[[torch.Tensor], QuantizedLinear]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> _AtLoadConfig:
        return cls()

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        if isinstance(layer, LinearBase):
            return AtLoadLinearMethod(type(self).pack)
        if isinstance(layer, ParallelLMHead):
            return AtLoadHeadMethod()
        return None


class AtLoadInt8Config(_AtLoadConfig):
    """``--quantization cpu_int8``"""

    name = "cpu_int8"
    pack = staticmethod(pack_int8)


class AtLoadInt4Config(_AtLoadConfig):
    """``--quantization cpu_int4``"""

    name = "cpu_int4"
    pack = staticmethod(pack_int4)


def register() -> None:
    """Make both names known to the host."""
    for config in (AtLoadInt8Config, AtLoadInt4Config):
        register_quantization_config(config.name)(config)
