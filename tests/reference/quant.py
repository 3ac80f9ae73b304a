"""Quantized weights and activations, as their schemes define them."""

from __future__ import annotations

import torch

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def quantize_weight(
    weight: torch.Tensor, bits: int, group: int, scale_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """weight [n, k] to symmetric codes int8 [n, k] and scales [groups, n], groups along k."""
    n, k = weight.shape
    highest = 2 ** (bits - 1) - 1
    padded = torch.nn.functional.pad(weight.float(), (0, -k % group)).view(n, -1, group)
    scales = (padded.abs().amax(-1) / highest).to(scale_dtype)
    codes = (padded / scales.float()[:, :, None]).round().clamp(-highest - 1, highest)
    return codes.view(n, -1)[:, :k].to(torch.int8), scales.t().contiguous()


def dequantize(
    codes: torch.Tensor,
    scales: torch.Tensor,
    group: int,
    zeros: torch.Tensor | None = None,
    offsets: bool = False,
) -> torch.Tensor:
    """fp64 [n, k] of codes [n, k], scales and zeros [groups, n]."""
    index = torch.arange(codes.shape[1]) // group
    scale = scales.double()[index].t()
    if zeros is None:
        return codes.double() * scale
    zero = zeros.double()[index].t()
    return codes.double() * scale + zero if offsets else (codes.double() - zero) * scale


def dequantize_levels(
    codes: torch.Tensor, scales: torch.Tensor, group: int, levels: torch.Tensor
) -> torch.Tensor:
    """fp64 [n, k] of codes [n, k], scales [groups, n] and levels step + 256 * base [pieces, n]."""
    level = levels.int()[torch.arange(codes.shape[1]) // 32].t()
    return dequantize(codes * (level & 255) + (level >> 8) - 128, scales, group)


def dequantize_nvfp4(
    pairs: torch.Tensor, scales: torch.Tensor, divisor: torch.Tensor
) -> torch.Tensor:
    """fp32 [..., n, k] of two e2m1 codes per byte [..., n, k / 2], the first one low, e4m3 scales
    [..., n, k / 16] and what these were multiplied by, one number for each matrix."""
    codes = torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2)
    scale = scales.float() / divisor[..., None, None]
    return torch.cat((E2M1, -E2M1))[codes.int()] * scale.repeat_interleave(16, -1)


def int8_activations(
    x: torch.Tensor, kind: str, scale: float, zero: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes less their zero point, and scales [rows, 1], of x [rows, k]: what compressed-tensors
    computes, in fp32."""
    x = x.float()
    zeros = torch.zeros(x.shape[0], 1)
    if kind.startswith("int8_static"):
        scales = torch.full((x.shape[0], 1), scale)
        zeros = zeros + zero
    elif kind == "int8_token":
        scales = x.abs().amax(-1, keepdim=True) / 127
    else:
        low = x.amin(-1, keepdim=True).clamp(max=0)
        high = x.amax(-1, keepdim=True).clamp(min=0)
        scales = (high - low) / 255
        zeros = (-128 - low / scales).round()
    codes = ((x / scales).round() + zeros).clamp(-128, 127) - zeros
    return codes.double(), scales.double()
