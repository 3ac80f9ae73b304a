"""RMS norm on the fused ops: with a residual, add and norm are one pass."""

from __future__ import annotations

import torch

from cpu_backend.host.bases import RMSNorm


class CpuRMSNorm(RMSNorm):
    """The host's RMSNorm with this project's ``forward_cpu``."""

    def forward_cpu(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """x, residual [..., hidden]; with a residual both are updated in place."""
        if self.variance_size_override is not None:
            return self.forward_native(x, residual)
        weight = self.weight.data if self.has_weight else None
        if residual is None:
            out = torch.empty(x.shape, dtype=x.dtype)
            torch.ops._C.rms_norm.default(out, x, weight, self.variance_epsilon)
            return out
        torch.ops._C.fused_add_rms_norm.default(x, residual, weight, self.variance_epsilon)
        return x, residual
