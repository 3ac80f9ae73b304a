"""Adapters of experts and of latents' projections, beside weights that they are merged into."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.lora.lora_weights import LoRALayerWeights
from vllm.model_executor.layers.fused_moe.experts.lora_context import MoELoRAContext

from cpu_backend import ops
from cpu_backend.attention.latent_adapters import LatentAdapters
from cpu_backend.errors import ConfigError
from cpu_backend.host import adapter_experts, adapter_weights
from cpu_backend.layers.expert_adapters import ExpertAdapters
from cpu_backend.products import activate
from cpu_backend.worker.lora import CPUPunicaWrapper

ADAPTERS, EXPERTS, RANK, HIDDEN, INNER, TOP = 3, 5, 4, 48, 40, 2
INDICES = torch.tensor([2, -1, 0, 2, -1, 1, 1, 0])  # the adapter 1 has nothing for experts
ENABLED = torch.tensor([1, 0, 1, 0])


@pytest.fixture
def wrapper() -> CPUPunicaWrapper:
    made = CPUPunicaWrapper(16, 8, torch.device("cpu"))
    made._token_lora_indices[: len(INDICES)] = INDICES
    made.indices_len = [len(INDICES)] * 4
    return made


class Mixture:
    """Random experts and adapters; pairs: 2 of gate and up projection each, or 1 of both."""

    def __init__(
        self, activation: str, pairs: int, dtype: torch.dtype, generator: torch.Generator
    ) -> None:
        def random(*sizes: int) -> torch.Tensor:
            return (torch.randn(*sizes, generator=generator) / sizes[-1] ** 0.5).to(dtype)

        self.halves = 1 if activation == "relu2" else 2
        self.activation, self.in_turns = activation, activation == "swigluoai"
        outputs = self.halves * INNER // pairs
        self.w13, self.w2 = (
            random(EXPERTS, self.halves * INNER, HIDDEN),
            random(EXPERTS, HIDDEN, INNER),
        )
        self.bias = random(EXPERTS, self.halves * INNER)
        self.a13 = tuple(random(ADAPTERS, EXPERTS, RANK, HIDDEN) for _ in range(pairs))
        self.b13 = tuple(random(ADAPTERS, EXPERTS, outputs, RANK) for _ in range(pairs))
        self.a2 = random(ADAPTERS, EXPERTS, RANK, INNER)
        self.b2 = random(ADAPTERS, EXPERTS, HIDDEN, RANK)
        self.x = random(len(INDICES), HIDDEN) * HIDDEN**0.5
        self.ids = torch.stack(
            [torch.randperm(EXPERTS, generator=generator)[:TOP] for _ in INDICES]
        ).int()
        self.ids[3, 1] = -1  # on another rank
        self.weights = torch.rand(len(INDICES), TOP, generator=generator)

    def experts(self) -> ops.Experts:
        return ops.Experts(
            [ops.PackedLinear(w, parts=self.halves) for w in self.w13],
            [ops.PackedLinear(w) for w in self.w2],
            self.activation,
        )

    def adapters(self, wrapper: CPUPunicaWrapper) -> ExpertAdapters:
        context = MoELoRAContext(
            w13_lora_a_stacked=self.a13,
            w13_lora_b_stacked=self.b13,
            w2_lora_a_stacked=(self.a2,),
            w2_lora_b_stacked=(self.b2,),
            adapter_enabled=ENABLED,
            max_loras=ADAPTERS,
            top_k=TOP,
            w13_num_slices=len(self.a13),
            fully_sharded=False,
            tp_rank=0,
            tp_size=1,
            local_num_experts=EXPERTS,
            punica_wrapper=wrapper,
            use_tuned_config=False,
        )
        return ExpertAdapters(context, self.in_turns)

    def merged(self, adapter: int, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        w13, w2 = self.w13[expert].float(), self.w2[expert].float()
        if adapter < 0 or not ENABLED[adapter]:
            return w13, w2
        pairs = zip(self.a13, self.b13, strict=True)
        added = [b[adapter, expert].float() @ a[adapter, expert].float() for a, b in pairs]
        if self.in_turns and len(added) == 1:
            added = [added[0][::2], added[0][1::2]]
        down = self.b2[adapter, expert].float() @ self.a2[adapter, expert].float()
        return w13 + torch.cat(added), w2 + down

    def expected(self) -> torch.Tensor:
        out = torch.zeros(self.x.shape)
        for token, adapter in enumerate(INDICES.tolist()):
            for expert, share in zip(self.ids[token].tolist(), self.weights[token], strict=True):
                if expert >= 0:
                    w13, w2 = self.merged(adapter, expert)
                    first = (w13 @ self.x[token].float() + self.bias[expert]).unsqueeze(0)
                    out[token] += share * (w2 @ activate(first, self.activation, self.halves)[0])
        return out


@pytest.mark.parametrize(
    ("activation", "pairs"),
    [("silu", 2), ("gelu_tanh", 1), ("swigluoai", 1), ("swigluoai", 2), ("relu2", 1)],
)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03)])
def test_experts(
    activation: str,
    pairs: int,
    dtype: torch.dtype,
    error: float,
    wrapper: CPUPunicaWrapper,
    seeded: torch.Generator,
) -> None:
    mixture = Mixture(activation, pairs, dtype, seeded)
    experts, adapters = mixture.experts(), mixture.adapters(wrapper)
    out = torch.full_like(mixture.x, torch.nan)
    adapters(experts, out, mixture.x, mixture.weights, mixture.ids, mixture.bias, None)
    torch.testing.assert_close(out.float(), mixture.expected(), rtol=error, atol=error)

    plain = torch.empty_like(out)
    experts(plain, mixture.x, mixture.weights, mixture.ids, mixture.bias, None)
    without = torch.tensor([1, 4, 5, 6])  # none, or one that has nothing for experts
    assert torch.equal(out[without], plain[without])

    wrapper.indices_len = [1] * 4
    for token in (0, 7):  # alone
        wrapper._token_lora_indices[0] = INDICES[token]
        one, row = out.new_empty(1, HIDDEN), slice(token, token + 1)
        rows = mixture.x[row], mixture.weights[row], mixture.ids[row]
        adapters(experts, one, *rows, mixture.bias, None)
        assert torch.equal(one[0], out[token])


def test_projections_of_latents(wrapper: CPUPunicaWrapper, seeded: torch.Generator) -> None:
    heads, unrotated, values, latent, tokens = 3, 6, 5, 16, len(INDICES)
    a = torch.randn(ADAPTERS, 1, RANK, latent, generator=seeded)
    b = torch.randn(ADAPTERS, 1, heads * (unrotated + values), RANK, generator=seeded)
    layer = SimpleNamespace(lora_a_stacked=(a,), lora_b_stacked=(b,), punica_wrapper=wrapper)
    adapters = LatentAdapters(layer, heads, unrotated)
    added = (b[:, 0] @ a[:, 0]).unflatten(1, (heads, -1))  # [adapters, heads, channels, latent]
    to_keys, to_values = added[INDICES].split((unrotated, values), 2)
    having = (INDICES >= 0).view(-1, 1, 1)

    query = torch.randn(tokens, heads, unrotated, generator=seeded)
    absorbed = torch.randn(tokens, heads, latent, generator=seeded)
    expected = absorbed + having * torch.einsum("thu,thul->thl", query, to_keys)
    adapters.add_to_queries(absorbed, query)
    torch.testing.assert_close(absorbed, expected, rtol=1e-4, atol=1e-4)

    attended = torch.randn(tokens, heads, latent, generator=seeded)
    results = torch.randn(tokens, heads, values, generator=seeded)
    expected = results + having * torch.einsum("thl,thvl->thv", attended, to_values)
    adapters.add_to_results(results, attended)
    torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-4)


def _weights(name: str, inputs: int, outputs: int) -> LoRALayerWeights:
    return LoRALayerWeights(name, RANK, 8, torch.ones(RANK, inputs), torch.ones(outputs, RANK))


def test_what_an_adapter_lacks_of_its_experts_becomes_zeros() -> None:
    names = [f"experts.{e}.{p}" for e in range(2) for p in ("gate_proj", "down_proj", "up_proj")]
    other = [f"experts.{e}.{p}" for e in range(2) for p in ("w1", "w2", "w3")]
    weights = {"experts.1.w2": _weights("experts.1.w2", INNER, HIDDEN)}
    adapter_experts._rename(weights, [names, other])
    assert list(weights) == ["experts.1.down_proj"]
    manager = SimpleNamespace(
        _restrict_to_local_experts=lambda module, names: names,
        modules={"experts": SimpleNamespace(local_num_experts=2)},
    )
    adapter_experts._fill(weights, names, manager, "experts")
    assert set(weights) == set(names)
    sizes = {name: (one.lora_a.shape[1], one.lora_b.shape[0]) for name, one in weights.items()}
    assert sizes["experts.0.gate_proj"] == sizes["experts.1.up_proj"] == (HIDDEN, INNER)
    assert sizes["experts.0.down_proj"] == (INNER, HIDDEN)
    assert [name for name in names if weights[name].lora_b.any()] == ["experts.1.down_proj"]


def test_matrices_of_all_experts_are_told_apart_by_their_sizes() -> None:
    layer = SimpleNamespace(hidden_size=HIDDEN, intermediate_size_per_partition=INNER, tp_size=1)
    both = _weights("x", HIDDEN, 2 * INNER)
    weights: dict[str, Any] = {"experts": both}
    adapter_experts._arrange(weights, "experts", layer, "mine")
    assert weights["experts.base_layer"] is both
    assert weights["experts"].lora_a.shape[1] == INNER
    assert not weights["experts"].lora_b.any()
    with pytest.raises(ConfigError, match="mine has weights of 7 inputs and 96 outputs"):
        adapter_experts._arrange({"experts": _weights("x", 7, 96)}, "experts", layer, "mine")


@pytest.mark.parametrize("hosts", [False, True])
def test_weights_that_no_layer_takes(hosts: bool) -> None:
    """Whether the host finds them, by the last part of their names, or not."""
    names = [f"model.layers.{n}.visual.q_proj" for n in range(5)]

    def load(self: Any, lora_request: Any) -> Any:
        if hosts:
            raise ValueError(f"expected modules in {{'a'}} but received {names}. Please verify")
        return SimpleNamespace(loras=dict.fromkeys(["model.layers.0.q_proj", *names]))

    model = torch.nn.Module()
    manager = SimpleNamespace(
        model=model,
        modules={"model.layers.0.qkv_proj": model},
        packed_modules={"model.layers.0.qkv_proj": ["model.layers.0.q_proj"]},
        is_pooling_model=False,
        lora_config=SimpleNamespace(target_modules=None),
    )
    worker = SimpleNamespace(_adapter_manager=manager)
    with pytest.raises(
        ConfigError,
        match=r"mine has weights for model.layers.0.visual.q_proj, "
        r".* and 2 more, which .* cannot add adapters to here: train it",
    ):
        adapter_weights.refuse_what_is_dropped(load)(worker, SimpleNamespace(lora_name="mine"))
