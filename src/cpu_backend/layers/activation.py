"""Activations on this project's ops, alone or inside the linear layer before them."""

from __future__ import annotations

import torch
from transformers.activations import GELUActivation, ReLUSquaredActivation

from cpu_backend import providers
from cpu_backend.host.bases import (
    RowParallelLinear,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_reduce,
)
from cpu_backend.host.bases import activation as host
from cpu_backend.layers import known_forward


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
    """The same of what x[..., :d] exceeds its mean and some standard deviations by: those of the
    channels of all ranks, where the host takes each rank's own."""

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        mean = _mean_of_ranks(gate.float())
        deviation = _mean_of_ranks((gate - mean).square()).sqrt().to(x.dtype)
        limit = mean.to(x.dtype) + deviation * self.std_multiplier
        return _gated_gelu(self.approximate, torch.cat((torch.relu(gate - limit), up), -1))


def _mean_of_ranks(x: torch.Tensor) -> torch.Tensor:
    """[..., 1] of [..., channels], as many on every rank."""
    ranks = get_tensor_model_parallel_world_size()
    mean: torch.Tensor = tensor_model_parallel_all_reduce(x.mean(-1, keepdim=True)) / ranks
    return mean


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


class CpuReLUSquared(host.ReLUSquaredActivation):
    """max(x, 0) squared."""

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        return _plain(torch.ops._C.relu_squared.default, x)


class CpuXIELU(host.XIELU):
    """The host's, computed in fp32 and rounded once.

    Its parameters are bf16 in every model, which in fp16 would make the result fp32.
    """

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward_native(x.float()).to(x.dtype)


class ActivatedLinear:
    """A packed projection and the activation that follows in one call; of a gate and up projection
    their product as well."""

    def __init__(self, packed: providers.Linear, activation: str) -> None:
        self._packed = packed
        self._activation = activation

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [..., in_features] to [..., out_features / parts]; ``weight`` is not read."""
        packed = self._packed
        out = x.new_empty((*x.shape[:-1], packed.out_features // packed.parts))
        run = packed.act if packed.parts == 1 else packed.act_and_mul
        run(out, x, self._activation, bias)
        return out


# What is nothing but projection, activation and, where it is the module's, projection back.
_FORMS = (
    """
    def forward(self, x):
        projected, _ = self.projection(x)
        activated = self.activation(projected)
        out, _ = self.down(activated)
        return out
    """,
    """
    def forward(self, x):
        projected, _ = self.projection(x)
        out, _ = self.down(self.activation(projected))
        return out
    """,
    """
    def forward(self, x):
        return self.down(self.activation(self.projection(x)[0]))[0]
    """,
    # The host's function activates and quantizes in one kernel where it has one: not on CPUs.
    """
    def forward(self, x):
        projected, _ = self.projection(x)
        activated = maybe_fused_act_quant(self.activation, projected, self.down)
        out, _ = self.down(activated)
        return out
    """,
    """
    def forward(self, x):
        projected, _ = self.projection(x)
        activated = self.activation(projected)
        return activated
    """,
)
# The same with a gate that the module applies itself.
_GATED_FORM = """
    def forward(self, x):
        both, _ = self.projection(x)
        gate, up = both.chunk(2, dim=-1)
        return self.down(self.activation(gate) * up)[0]
    """


def activate_in_linear(model: torch.nn.Module) -> int:
    """Let projections do the activation after them; returns how many do.

    Taken are modules of a known form and of nothing else, so that nothing lies between projection
    and activation.
    """
    return sum(_activate_in_linear(module) for module in model.modules())


def _activate_in_linear(module: torch.nn.Module) -> bool:
    forward = type(module).forward
    for form in (*_FORMS, _GATED_FORM):
        if names := known_forward.attributes(forward, form):
            break
    else:
        return False
    if set(names.values()) != {name for name, _ in module.named_children()}:
        return False
    projection = getattr(module, names["projection"])
    packed = getattr(projection, "cpu_linear", None)
    activation = getattr(module, names["activation"])
    of_halves = form != _GATED_FORM and isinstance(activation, (CpuSiluAndMul, CpuGeluAndMul))
    gated = of_halves or form == _GATED_FORM
    name = _name_of(activation)
    if (
        name is None
        or (gated and name == "relu2")
        or not isinstance(packed, providers.Linear)
        or packed.parts != (2 if gated else 1)
        or isinstance(projection, RowParallelLinear)  # its result may be a part of a sum
    ):
        return False
    projection.cpu_linear = ActivatedLinear(packed, name)
    setattr(module, names["activation"], torch.nn.Identity())
    if form == _GATED_FORM:
        down = getattr(module, names["down"])
        module.forward = lambda x: down(projection(x)[0])[0]
    return True


def _name_of(activation: torch.nn.Module) -> str | None:
    """Of a function that linear layers compute, whose class it may be: the host's, torch's or
    that of transformers."""
    if isinstance(activation, (CpuSiluAndMul, torch.nn.SiLU)):
        return "silu"
    if isinstance(activation, (CpuGeluAndMul, torch.nn.GELU)):
        return "gelu_tanh" if activation.approximate == "tanh" else "gelu"
    if isinstance(activation, (host.GELU, GELUActivation)):
        return "gelu"
    if isinstance(activation, (host.GELUTanh, host.NewGELU, host.FastGELU)):
        return "gelu_tanh"
    if isinstance(activation, host.QuickGELU):
        return "gelu_quick"
    if isinstance(activation, (host.ReLUSquaredActivation, ReLUSquaredActivation)):
        return "relu2"
    return None
