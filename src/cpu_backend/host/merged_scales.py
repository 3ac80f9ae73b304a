"""Layers that the host merges (q, k and v; gate and up) keep their own global scales in NVFP4.

What: before the host takes the largest for all, it goes into each row's scales, which become fp32.
Why: scales of a group are relative to the global one of the same matrix, so with that of another
    the numbers are wrong, by as much as the two differ.  The host warns, and computes.
Since: 0.32
Until: it refuses such checkpoints, or keeps all of them.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend.host.seam import When, patch

QUANTIZATION = "vllm.model_executor.layers.quantization"


@patch(
    f"{QUANTIZATION}.compressed_tensors.schemes.compressed_tensors_w4a4_nvfp4",
    "CompressedTensorsW4A4Fp4.process_weights_after_loading(self, layer)",
    when=When.COMPUTING,
)
def take_divisors(original: Any) -> Any:
    """compressed-tensors stores what scales are divided by."""

    def process_weights_after_loading(self: Any, layer: torch.nn.Module) -> None:
        divisors = layer.weight_global_scale.data
        _to_rows(layer, divisors.max() / divisors)
        divisors.fill_(divisors.max())
        original(self, layer)

    return process_weights_after_loading


@patch(f"{QUANTIZATION}.modelopt", "KNvfp4Static.process(self, layer, role)", when=When.COMPUTING)
def take_factors(original: Any) -> Any:
    """Model Optimizer stores what scales are multiplied by."""

    def process(self: Any, layer: torch.nn.Module, role: Any) -> None:
        factors = layer.weight_scale_2.data
        _to_rows(layer, factors / factors.max())
        factors.fill_(factors.max())
        original(self, layer, role)

    return process


def _to_rows(layer: Any, factors: torch.Tensor) -> None:
    """weight_scale [out, in / 16] of the merged matrices times the factor of each, unless all are
    one."""
    if (factors == 1).all():
        return
    rows = torch.tensor(layer.logical_widths)
    scales = layer.weight_scale.data.float() * factors.repeat_interleave(rows)[:, None]
    layer.weight_scale = torch.nn.Parameter(scales, requires_grad=False)
