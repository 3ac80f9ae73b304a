"""Norms on the fused ops: with a residual or a gate, all is one pass."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cpu_backend import ops
from cpu_backend.host.bases import (
    FusedRMSNormGated,
    GemmaRMSNorm,
    LayerNorm,
    Mixer2RMSNormGated,
    RMSNorm,
    RMSNormGated,
)
from cpu_backend.layers import known_forward
from cpu_backend.layers.linear import SUPPORTED


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


class CpuGemmaRMSNorm(GemmaRMSNorm):
    """The norm of Gemma, Qwen3-Next and Qwen3.5, whose weight lacks 1."""

    def forward_cpu(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """x, residual [..., hidden]; with a residual both are updated in place."""
        if self.weight.dtype != x.dtype:
            return self.forward_native(x, residual)
        if residual is None:
            return ops.gemma_rms_norm(x, self.weight.data, self.variance_epsilon)
        ops.fused_add_gemma_rms_norm(x, residual, self.weight.data, self.variance_epsilon)
        return x, residual


class CpuRMSNormGated(RMSNormGated):
    """The norm of each head's output in a gated delta net."""

    def forward_cpu(self, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        """x, z [tokens, heads, channels]."""
        if z is None or x.dim() != 3 or self.group_size or self.weight.dtype != x.dtype:
            return self.forward_native(x, z)
        activation = "sigmoid" if self.activation == "sigmoid" else "silu"
        return ops.gated_rms_norm(
            x, z, self.weight.data, self.eps, gate_first=not self.norm_before_gate, act=activation
        )


class CpuFusedRMSNormGated(FusedRMSNormGated):
    """The norm of each head's output in Kimi's delta attention."""

    def forward_cpu(self, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        """x, g [tokens, heads, channels]."""
        if self.weight is None or self.weight.dtype != x.dtype:
            return self.forward_native(x, g)
        activation = "sigmoid" if self.activation == "sigmoid" else "silu"
        return ops.gated_rms_norm(
            x, g, self.weight.data, self.eps, gate_first=False, act=activation
        )


class CpuMixer2RMSNormGated(Mixer2RMSNormGated):
    """The norm of a Mamba-2 layer: of groups of channels, after the gate."""

    def forward_cpu(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """x, gate [tokens, channels].

        Groups that ranks share are summed over all of them, which is the host's.
        """
        is_whole = self.tp_size == 1 or (self.n_groups > 1 and self.n_groups % self.tp_size == 0)
        if not (self.use_rms_norm and is_whole) or self.weight.dtype != x.dtype:
            return self.forward_native(x, gate)
        groups = (-1, self.group_size)
        return ops.gated_rms_norm(
            x.unflatten(-1, groups),
            gate.unflatten(-1, groups),
            self.weight.data,
            self.variance_epsilon,
            gate_first=True,
            act="silu",
        ).flatten(-2)


class CpuHostLayerNorm(LayerNorm):
    """The host's layer norm, of many models since 0.32."""

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., hidden]"""
        if self.weight is not None and self.weight.dtype != x.dtype:
            return self.forward_native(x)
        return ops.layer_norm(x, None, self.weight, self.bias, self.eps)


class CpuLayerNorm(torch.nn.LayerNorm):
    """torch's layer norm of the last dimension."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """x, residual [..., hidden]: of x or of their sum."""
        if self.weight is not None and self.weight.dtype != x.dtype:
            return super().forward(x if residual is None else x + residual)
        return ops.layer_norm(x, residual, self.weight, self.bias, self.eps)


# What adds and normalizes: after a projection, and in a whole layer.
_ADD_AFTER_PROJECTION = """
    def forward(self, x, residual):
        projected, _ = self.projection(x)
        normalized = self.norm(projected + residual)
        return normalized
    """
_ADD_TWICE = """
    def forward(self, positions, x):
        attended = self.attention(positions, x)
        between = self.first_norm(x + attended)
        out = self.mlp(between)
        result = self.second_norm(between + out)
        return result
    """


def take_layer_norms(model: torch.nn.Module) -> None:
    """Have torch's own layer norms in ``model`` run here, with the addition before them where the
    forward around them is of a known form."""
    for module in model.modules():
        if (
            type(module) is torch.nn.LayerNorm
            and len(module.normalized_shape) == 1
            and (module.weight is None or module.weight.dtype in SUPPORTED)
        ):
            module.__class__ = CpuLayerNorm
    for module in model.modules():
        for form, add in ((_ADD_AFTER_PROJECTION, _add_after_projection), (_ADD_TWICE, _add_twice)):
            names = known_forward.attributes(type(module).forward, form)
            parts = {role: getattr(module, name) for role, name in (names or {}).items()}
            norms = [part for role, part in parts.items() if role.endswith("norm")]
            if norms and all(isinstance(norm, CpuLayerNorm) for norm in norms):
                module.forward = add(**parts)


Forward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _add_after_projection(projection: torch.nn.Module, norm: CpuLayerNorm) -> Forward:
    def forward(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = norm(projection(x)[0], residual)
        return result

    return forward


def _add_twice(
    attention: torch.nn.Module,
    first_norm: CpuLayerNorm,
    mlp: torch.nn.Module,
    second_norm: CpuLayerNorm,
) -> Forward:
    def forward(positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        between = first_norm(hidden_states, attention(positions, hidden_states))
        result: torch.Tensor = second_norm(between, mlp(between))
        return result

    return forward
