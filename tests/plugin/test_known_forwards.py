"""Projections that do the activation after them, and layer norms that do the addition before."""

from __future__ import annotations

import importlib

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config

from cpu_backend import ops
from cpu_backend.layers import activation as activations
from cpu_backend.layers import known_forward, norm
from cpu_backend.layers.activation import (
    CpuGeluAndMul,
    CpuNewGELU,
    CpuQuickGELU,
    CpuReLUSquared,
    CpuSiluAndMul,
    activate_in_linear,
)
from cpu_backend.layers.norm import CpuLayerNorm, take_layer_norms
from cpu_backend.layers.quantization.at_load import pack_int8

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


@pytest.mark.parametrize("int8", [False, True], ids=["bf16", "cpu_int8"])
def test_an_mlp_is_fused_and_its_result_stays(act_fn: torch.nn.Module, int8: bool) -> None:
    mlp, x = Mlp(act_fn), torch.randn(7, SIZE).bfloat16()
    if int8:
        mlp.gate_up_proj.cpu_linear = pack_int8(torch.randn(2 * HIDDEN, SIZE).bfloat16(), 2)
    expected = mlp(x)
    assert activate_in_linear(torch.nn.ModuleList([mlp])) == 1
    assert mlp.gate_up_proj(x)[0].shape == (7, HIDDEN)
    assert torch.equal(mlp(x), expected)


def test_nothing_is_fused_where_it_would_change_the_result(act_fn: torch.nn.Module) -> None:
    changed = [kind(act_fn) for kind in (ClampedMlp, ScaledMlp, SwappedMlp, BranchingMlp)]
    unfit = [*changed, Mlp(act_fn, parts=1), Mlp(torch.nn.GLU())]
    assert activate_in_linear(torch.nn.ModuleList(unfit)) == 0


class PlainMlp(torch.nn.Module):
    """As of GPT-2, Whisper, CLIP and Nomic's encoders."""

    def __init__(self, act: torch.nn.Module) -> None:
        super().__init__()
        self.fc1 = Projection(HIDDEN, SIZE)
        self.activation_fn = act
        self.fc2 = Projection(SIZE, HIDDEN)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        hidden_states, _ = self.fc1(hidden_states)
        hidden_states = self.activation_fn(hidden_states)
        hidden_states, _ = self.fc2(hidden_states)
        return hidden_states


class Intermediate(torch.nn.Module):
    """As of BERT."""

    def __init__(self, act: torch.nn.Module) -> None:
        super().__init__()
        self.dense = Projection(HIDDEN, SIZE)
        self.intermediate_act_fn = act

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        hidden_states, _ = self.dense(hidden_states)
        hidden_states = self.intermediate_act_fn(hidden_states)
        return hidden_states


class BiasedIntermediate(Intermediate):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        hidden_states, bias = self.dense(hidden_states)
        hidden_states = self.intermediate_act_fn(hidden_states + (bias or 0))
        return hidden_states


class GatedByItself(torch.nn.Module):
    """As of ModernBERT."""

    def __init__(self, act: torch.nn.Module) -> None:
        super().__init__()
        self.Wi = Projection(2 * HIDDEN, SIZE, parts=2)
        self.act = act
        self.Wo = Projection(SIZE, HIDDEN)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        input_gate, _ = self.Wi(hidden_states)
        input, gate = input_gate.chunk(2, dim=-1)
        return self.Wo(self.act(input) * gate)[0]


class GatedByTheOther(GatedByItself):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        input_gate, _ = self.Wi(hidden_states)
        input, gate = input_gate.chunk(2, dim=-1)
        return self.Wo(self.act(gate) * input)[0]


@pytest.fixture(params=["silu", "gelu", "gelu_tanh", "gelu_new", "gelu_quick", "relu2"])
def plain_act(request: pytest.FixtureRequest) -> torch.nn.Module:
    with set_current_vllm_config(VllmConfig()):
        kinds = {
            "silu": torch.nn.SiLU,
            "gelu": torch.nn.GELU,
            "gelu_tanh": lambda: torch.nn.GELU(approximate="tanh"),
            "gelu_new": CpuNewGELU,
            "gelu_quick": CpuQuickGELU,
            "relu2": CpuReLUSquared,
        }
        act: torch.nn.Module = kinds[request.param]()
        return act


@pytest.mark.parametrize("kind", [PlainMlp, Intermediate])
@pytest.mark.parametrize("int8", [False, True], ids=["bf16", "cpu_int8"])
def test_a_plain_activation_is_fused_and_the_result_stays(
    kind: type[torch.nn.Module], int8: bool, plain_act: torch.nn.Module
) -> None:
    module, x = kind(plain_act), torch.randn(7, SIZE).bfloat16()
    projection = next(child for child in module.children())
    if int8:
        projection.cpu_linear = pack_int8(torch.randn(HIDDEN, SIZE).bfloat16())
    expected = module(x)
    assert activate_in_linear(torch.nn.ModuleList([module])) == 1
    assert torch.equal(module(x), expected)
    activated = plain_act(projection.cpu_linear._packed(x))
    assert torch.equal(projection(x)[0], activated), "the projection activates"


def test_a_gate_that_the_module_applies_is_fused() -> None:
    module, x = GatedByItself(torch.nn.GELU()), torch.randn(7, SIZE).bfloat16()
    exact = module.Wi(x)[0].double().chunk(2, -1)
    expected = (torch.nn.functional.gelu(exact[0]) * exact[1]).bfloat16()
    assert activate_in_linear(torch.nn.ModuleList([module])) == 1
    # Not the end of the module: there, roundings of the middle may be most of what cancels.
    activated = module.Wi(x)[0]
    torch.testing.assert_close(activated, expected)
    assert torch.equal(module(x), module.Wo(activated)[0])


def test_other_plain_forwards_stay() -> None:
    gelu = torch.nn.GELU()
    larger = Intermediate(gelu)
    larger.beside = torch.nn.Identity()  # may use the projection, too
    several = [
        BiasedIntermediate(gelu),
        GatedByTheOther(gelu),
        Intermediate(torch.nn.Tanh()),
        GatedByItself(torch.nn.Tanh()),
        PlainMlp(torch.nn.Sequential(gelu)),
        larger,
    ]
    assert activate_in_linear(torch.nn.ModuleList(several)) == 0


class Output(torch.nn.Module):
    """As of BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = Projection(SIZE, HIDDEN)
        self.LayerNorm = _layer_norm()

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        hidden_states, _ = self.dense(hidden_states)
        hidden_states = self.LayerNorm(hidden_states + input_tensor)
        return hidden_states


class ScaledOutput(Output):
    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        hidden_states, _ = self.dense(hidden_states)
        hidden_states = self.LayerNorm(2 * hidden_states + input_tensor)
        return hidden_states


class Block(torch.nn.Module):
    """As of Nomic's encoders, GTE and Snowflake's."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Positioned()
        self.attn_ln = _layer_norm()
        self.mlp = torch.nn.Linear(SIZE, SIZE, dtype=torch.bfloat16)
        self.mlp_ln = _layer_norm()

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        attn_output = self.attn(positions, hidden_states)
        hidden_states = self.attn_ln(hidden_states + attn_output)
        mlp_out = self.mlp(hidden_states)
        hidden_states = self.mlp_ln(hidden_states + mlp_out)
        return hidden_states


class Positioned(torch.nn.Module):
    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states * positions


def _layer_norm() -> torch.nn.LayerNorm:
    made = torch.nn.LayerNorm(SIZE, dtype=torch.bfloat16)
    torch.nn.init.normal_(made.weight)
    torch.nn.init.normal_(made.bias)
    return made.requires_grad_(False)


class CountedSums(torch.utils._python_dispatch.TorchDispatchMode):
    """How many sums of tensors are ops of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func.overloadpacket is torch.ops.aten.add
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kind", "sums"), [(Output, 0), (ScaledOutput, 1), (Block, 0)])
def test_an_addition_before_a_layer_norm_is_part_of_it(
    kind: type[torch.nn.Module], sums: int
) -> None:
    module = kind().requires_grad_(False)
    first = torch.randn(7, 1 if kind is Block else HIDDEN).bfloat16()
    residual = torch.randn(7, SIZE).bfloat16()
    expected, kept = module(first, residual), residual.clone()
    take_layer_norms(torch.nn.ModuleList([module]))
    with CountedSums() as counted:
        result = module(first, residual)
    assert counted.count == sums
    assert torch.equal(residual, kept)
    # One or two norms of numbers of bf16, each rounded once.
    torch.testing.assert_close(result, expected, rtol=2**-7, atol=2**-5)


def test_layer_norms_of_another_type_or_of_several_dimensions_stay() -> None:
    norms = torch.nn.ModuleList([torch.nn.LayerNorm((3, SIZE)), torch.nn.LayerNorm(SIZE).double()])
    take_layer_norms(norms)
    assert not any(isinstance(module, CpuLayerNorm) for module in norms)


def test_a_layer_norm_of_another_type_than_its_input_is_torchs() -> None:
    module = torch.nn.LayerNorm(SIZE).requires_grad_(False)
    x, residual = torch.randn(2, 7, SIZE).bfloat16()
    alone, of_sum = module(x), module(x + residual)
    take_layer_norms(module)
    assert type(module) is CpuLayerNorm
    assert torch.equal(module(x), alone)
    assert torch.equal(module(x, residual), of_sum)


def known(module: str, name: str, forms: tuple[str, ...]) -> bool:
    """Whether the forward of a class of the host is one of the forms."""
    models = importlib.import_module(f"vllm.model_executor.models.{module}")
    forward = getattr(models, name).forward
    return any(known_forward.attributes(forward, form) for form in forms)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("llama", "LlamaMLP"),
        ("gemma", "GemmaMLP"),
        ("qwen2", "Qwen2MLP"),
        ("mistral", "MistralMLP"),
        ("openpangu", "OpenPanguMLP"),
        ("step3_text", "Step3TextMLP"),
        ("bert", "BertIntermediate"),
        ("bert_with_rope", "BertWithRopeMLP"),
        ("bert_with_rope", "BertWithRopeGatedMLP"),
        ("gpt2", "GPT2MLP"),
        ("gpt_j", "GPTJMLP"),
        ("bloom", "BloomMLP"),
        ("whisper", "WhisperMLP"),
        ("clip", "CLIPMLP"),
        ("siglip", "SiglipMLP"),
        ("modernbert", "ModernBertMLP"),
    ],
)
def test_the_hosts_forwards_with_an_activation_are_known(module: str, name: str) -> None:
    assert known(module, name, (*activations._FORMS, activations._GATED_FORM))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("bert", "BertSelfOutput"),
        ("bert", "BertOutput"),
        ("bert_with_rope", "BertWithRopeBlock"),
    ],
)
def test_the_hosts_forwards_with_a_layer_norm_are_known(module: str, name: str) -> None:
    assert known(module, name, (norm._ADD_AFTER_PROJECTION, norm._ADD_TWICE))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("qwen2_moe", "Qwen2MoeMLP"),
        ("falcon_h1", "FalconH1MLP"),
        ("longcat_flash", "FlashMLP"),
        ("falcon", "FalconMLP"),
        ("modernbert", "ModernBertLayer"),
    ],
)
def test_forwards_that_do_more_are_not(module: str, name: str) -> None:
    forms = (*activations._FORMS, activations._GATED_FORM)
    assert not known(module, name, (*forms, norm._ADD_AFTER_PROJECTION, norm._ADD_TWICE))
