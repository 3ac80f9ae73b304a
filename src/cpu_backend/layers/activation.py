"""Activations on this project's ops, alone or inside the linear layer before them."""

from __future__ import annotations

import torch

from cpu_backend import providers
from cpu_backend.host.bases import activation as host
from cpu_backend.layers import gated_forward


def _gated(op: torch._ops.OpOverload, x: torch.Tensor) -> torch.Tensor:
    """x [..., 2 * size] to [..., size]."""
    out = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype)
    op(out, x)
    return out


def _gated_gelu(approximate: str, x: torch.Tensor) -> torch.Tensor:
    if approximate == "tanh":
        return _gated(torch.ops._C.gelu_tanh_and_mul.default, x)
    return _gated(torch.ops._C.gelu_and_mul.default, x)


def _plain(op: torch._ops.OpOverload, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype)  # dense, however x lies
    op(out, x)
    return out


class CpuSiluAndMul(host.SiluAndMul):
    """silu(x[..., :d]) * x[..., d:]"""

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        return _gated(torch.ops._C.silu_and_mul.default, x)


class CpuGeluAndMul(host.GeluAndMul):
    """gelu(x[..., :d]) * x[..., d:], exact or with the tanh approximation."""

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        return _gated_gelu(self.approximate, x)


class CpuGeluAndMulSparse(host.GeluAndMulSparse):
    """The same of what x[..., :d] exceeds its mean and some standard deviations by."""

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        deviation = gate.std(-1, keepdim=True, unbiased=False)
        limit = gate.mean(-1, keepdim=True) + deviation * self.std_multiplier
        return _gated_gelu(self.approximate, torch.cat((torch.relu(gate - limit), up), -1))


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


class CpuXIELU(host.XIELU):
    """The host's, computed in fp32 and rounded once.

    Its parameters are bf16 in every model, which in fp16 would make the result fp32.
    """

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward_native(x.float()).to(x.dtype)


class GatedLinear:
    """A packed gate and up projection, and the activation and product that follow, in one call."""

    def __init__(self, packed: providers.Linear, activation: str) -> None:
        self._packed = packed
        self._activation = activation

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [..., in_features] to [..., out_features / 2]; ``weight`` is not read."""
        out = x.new_empty((*x.shape[:-1], self._packed.out_features // 2))
        self._packed.act_and_mul(out, x, self._activation, bias)
        return out


_MLP = {"gate_up_proj", "act_fn", "down_proj"}


def activate_in_linear(model: torch.nn.Module) -> int:
    """Let gate and up projections do the activation after them; returns how many do.

    Taken are modules of just ``gate_up_proj``, ``act_fn`` and ``down_proj`` whose forward is of a
    known form, so that nothing lies between projection and activation.
    """
    fused = 0
    for module in model.modules():
        children = {name for name, _ in module.named_children()}
        if children != _MLP or not gated_forward.is_known(type(module).forward):
            continue
        packed = getattr(module.gate_up_proj, "cpu_linear", None)
        activation = _name_of(module.act_fn)
        if activation and isinstance(packed, providers.Linear) and packed.parts == 2:
            module.gate_up_proj.cpu_linear = GatedLinear(packed, activation)
            module.act_fn = torch.nn.Identity()
            fused += 1
    return fused


def _name_of(activation: torch.nn.Module) -> str | None:
    if isinstance(activation, CpuSiluAndMul):
        return "silu"
    if isinstance(activation, CpuGeluAndMul):
        return "gelu_tanh" if activation.approximate == "tanh" else "gelu"
    return None
