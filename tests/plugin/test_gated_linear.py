"""Gate and up projections that do the activation after them."""

from __future__ import annotations

import importlib

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config

from cpu_backend import ops
from cpu_backend.layers import gated_forward
from cpu_backend.layers.activation import CpuGeluAndMul, CpuSiluAndMul, activate_in_linear

SIZE, HIDDEN = 48, 80


class Projection(torch.nn.Module):
    def __init__(self, out_features: int, in_features: int, parts: int = 1) -> None:
        super().__init__()
        weight = torch.randn(out_features, in_features).bfloat16()
        self.cpu_linear = ops.PackedLinear(weight, parts=parts)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.cpu_linear(x), None


class Mlp(torch.nn.Module):
    def __init__(self, act_fn: torch.nn.Module, parts: int = 2) -> None:
        super().__init__()
        self.gate_up_proj = Projection(2 * HIDDEN, SIZE, parts)
        self.act_fn = act_fn
        self.down_proj = Projection(SIZE, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate_up, _ = self.gate_up_proj(x)
        x, _ = self.down_proj(self.act_fn(gate_up))
        return x


class ClampedMlp(Mlp):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate_up, _ = self.gate_up_proj(x)
        x, _ = self.down_proj(self.act_fn(gate_up.clamp(max=1.0)))
        return x


class ScaledMlp(Mlp):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate_up, _ = self.gate_up_proj(x)
        x, _ = self.down_proj(self.act_fn(gate_up * 2.0))
        return x


class SwappedMlp(Mlp):
    """The same names and calls in another order of data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate_up, _ = self.gate_up_proj(x)
        y = self.act_fn(gate_up)
        y, _ = self.down_proj(gate_up)
        return y


class BranchingMlp(Mlp):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 1:
            return x
        gate_up, _ = self.gate_up_proj(x)
        x, _ = self.down_proj(self.act_fn(gate_up))
        return x


@pytest.fixture(params=["silu", "gelu", "gelu_tanh"])
def act_fn(request: pytest.FixtureRequest) -> torch.nn.Module:
    with set_current_vllm_config(VllmConfig()):
        if request.param == "silu":
            return CpuSiluAndMul()
        return CpuGeluAndMul("tanh" if request.param == "gelu_tanh" else "none")


def test_an_mlp_is_fused_and_its_result_stays(act_fn: torch.nn.Module) -> None:
    mlp, x = Mlp(act_fn), torch.randn(7, SIZE).bfloat16()
    expected = mlp(x)
    assert activate_in_linear(torch.nn.ModuleList([mlp])) == 1
    assert mlp.gate_up_proj(x)[0].shape == (7, HIDDEN)
    assert torch.equal(mlp(x), expected)


def test_nothing_is_fused_where_it_would_change_the_result(act_fn: torch.nn.Module) -> None:
    changed = [kind(act_fn) for kind in (ClampedMlp, ScaledMlp, SwappedMlp, BranchingMlp)]
    unfit = [*changed, Mlp(act_fn, parts=1), Mlp(torch.nn.GLU())]
    assert activate_in_linear(torch.nn.ModuleList(unfit)) == 0


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("llama", "LlamaMLP"),
        ("gemma", "GemmaMLP"),
        ("qwen2", "Qwen2MLP"),
        ("mistral", "MistralMLP"),
        ("openpangu", "OpenPanguMLP"),
        ("step3_text", "Step3TextMLP"),
    ],
)
def test_the_hosts_forwards_are_known(module: str, name: str) -> None:
    models = importlib.import_module(f"vllm.model_executor.models.{module}")
    assert gated_forward.is_known(getattr(models, name).forward)


@pytest.mark.parametrize(
    ("module", "name"),
    [("qwen2_moe", "Qwen2MoeMLP"), ("falcon_h1", "FalconH1MLP"), ("longcat_flash", "FlashMLP")],
)
def test_forwards_that_do_more_are_not(module: str, name: str) -> None:
    models = importlib.import_module(f"vllm.model_executor.models.{module}")
    assert not gated_forward.is_known(getattr(models, name).forward)
