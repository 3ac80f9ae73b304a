"""Activations on this project's ops."""

from __future__ import annotations

import torch
from vllm.model_executor.layers import activation as host


def _gated(op: torch._ops.OpOverload, x: torch.Tensor) -> torch.Tensor:
    """x [..., 2 * size] to [..., size]."""
    out = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype)
    op(out, x)
    return out


def _plain(op: torch._ops.OpOverload, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    op(out, x)
    return out


class CpuSiluAndMul(host.SiluAndMul):
    """silu(x[..., :d]) * x[..., d:]"""

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        return _gated(torch.ops._C.silu_and_mul.default, x)


class CpuGeluAndMul(host.GeluAndMul):
    """gelu(x[..., :d]) * x[..., d:], exact or with the tanh approximation."""

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        if self.approximate == "tanh":
            return _gated(torch.ops._C.gelu_tanh_and_mul.default, x)
        return _gated(torch.ops._C.gelu_and_mul.default, x)


class CpuNewGELU(host.NewGELU):
    """GELU with the tanh approximation, as GPT-2 defines it."""

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        return _plain(torch.ops._C.gelu_new.default, x)


class CpuFastGELU(host.FastGELU):
    """GELU with the tanh approximation, factored differently."""

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        return _plain(torch.ops._C.gelu_fast.default, x)


class CpuQuickGELU(host.QuickGELU):
    """x * sigmoid(1.702 x)"""

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        return _plain(torch.ops._C.gelu_quick.default, x)
