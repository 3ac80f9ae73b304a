"""Mixtures of experts against the linear layers that they are made of, token by token."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cpu_backend.layers.quantization.at_load import pack_int4, pack_int8
from cpu_backend.ops import Experts, PackedLinear, StepRecording
from tests.ops.accuracy import assert_accurate, guarded
from tests.reference.activation import swigluoai, swiglustep

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 72, 104, 7, 3


def by_op(name: str, parts: int = 2) -> Callable[[torch.Tensor], torch.Tensor]:
    """An activation of this backend, on its own; parts: 2 with a gate."""

    def apply(both: torch.Tensor) -> torch.Tensor:
        out = both.new_empty(len(both), both.shape[1] // parts)
        getattr(torch.ops._C, name)(out, both)
        return out

    return apply


GATED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": by_op("silu_and_mul"),
    "gelu": by_op("gelu_and_mul"),
    "gelu_tanh": by_op("gelu_tanh_and_mul"),
    "swigluoai": lambda both: swigluoai(both.float()).to(both.dtype),
    "swiglustep": lambda both: swiglustep(both.float()).to(both.dtype),
}
UNGATED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu2": lambda up: torch.relu(up).square(),
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": by_op("gelu_tanh", 1),
}
Pack = Callable[[torch.Tensor, int], PackedLinear]
PACKS: dict[str, Pack] = {
    "float": lambda weight, parts: PackedLinear(weight, parts=parts),
    "int8": pack_int8,
    "int4": pack_int4,
}


class Mixture:
    """Random experts, the op over them, and the same one token and expert after the other."""

    def __init__(
        self,
        dtype: torch.dtype,
        seeded: torch.Generator,
        gate_up: str = "float",
        down: str = "float",
        activation: str = "silu",
        bias: bool = False,
        parts: int = 2,
    ) -> None:
        def random(*size: int) -> torch.Tensor:
            return (torch.randn(size, generator=seeded) / 8).to(dtype)

        width = parts * INTERMEDIATE
        self._gate_up = [PACKS[gate_up](random(width, HIDDEN), parts) for _ in range(EXPERTS)]
        self._down = [PACKS[down](random(HIDDEN, INTERMEDIATE), 1) for _ in range(EXPERTS)]
        self._bias = (random(EXPERTS, width), random(EXPERTS, HIDDEN)) if bias else ()
        self._activate = (GATED if parts == 2 else UNGATED)[activation]
        self._op = Experts(self._gate_up, self._down, activation)

    def __call__(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        self._op(out, x, weights, ids, *self._bias)
        return out

    def into(self, out: torch.Tensor, *args: torch.Tensor) -> None:
        self._op(out, *args, *self._bias)

    def one_by_one(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """What each expert makes of its tokens, [tokens, top_k, hidden]; zeros for none."""
        results = torch.zeros(*ids.shape, HIDDEN, dtype=x.dtype)
        biases = self._bias or ([None] * EXPERTS, [None] * EXPERTS)
        for t, chosen in enumerate(ids.tolist()):
            for i, e in enumerate(chosen):
                if e >= 0:
                    both = self._gate_up[e](x[t : t + 1], None, biases[0][e])
                    hidden = self._activate(both)
                    results[t, i] = self._down[e](hidden, None, biases[1][e])
        return results


def routing(
    tokens: int, seeded: torch.Generator, experts: int = EXPERTS
) -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.rand(tokens, TOP_K, generator=seeded)
    ids = torch.stack([torch.randperm(experts, generator=seeded)[:TOP_K] for _ in range(tokens)])
    return weights, ids.int()


def summed(results: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (results * weights.to(results.dtype).unsqueeze(-1)).sum(1)


def assert_sums(
    mixture: Mixture,
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    slack: float = 0.0,
) -> None:
    results = mixture.one_by_one(x, ids)
    assert_accurate(mixture(x, weights, ids), summed, results, weights, slack=slack)


@pytest.mark.parametrize("tokens", [1, 2, 5, 13, 64, 200])
@pytest.mark.parametrize(
    ("gate_up", "down"),
    [("float", "float"), ("int8", "int8"), ("int4", "int4"), ("float", "int8"), ("int4", "float")],
)
def test_experts_are_their_linear_layers(
    tokens: int, gate_up: str, down: str, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    mixture = Mixture(dtype, seeded, gate_up, down)
    x = torch.randn(tokens, HIDDEN, generator=seeded).to(dtype)
    assert_sums(mixture, x, *routing(tokens, seeded))


@pytest.mark.parametrize("activation", GATED)
@pytest.mark.parametrize("kind", ["float", "int8"])
def test_biases_and_activations(
    activation: str, kind: str, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    mixture = Mixture(dtype, seeded, kind, kind, activation, bias=True)
    x = 6 * torch.randn(9, HIDDEN, generator=seeded).to(dtype)  # beyond the limits of swiglu...
    # Their reference is torch: its last places may move an int8 activation to the next.
    slack = 1e-3 if activation.startswith("swiglu") and kind == "int8" else 0.0
    assert_sums(mixture, x, *routing(9, seeded), slack)


@pytest.mark.parametrize("activation", UNGATED)
@pytest.mark.parametrize("kind", PACKS)
@pytest.mark.parametrize("tokens", [1, 9, 64])
def test_experts_without_a_gate(
    tokens: int, kind: str, activation: str, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    mixture = Mixture(dtype, seeded, kind, kind, activation, bias=tokens == 9, parts=1)
    x = torch.randn(tokens, HIDDEN, generator=seeded).to(dtype)
    # As above.
    slack = 1e-3 if activation in ("silu", "gelu") and kind != "float" else 0.0
    assert_sums(mixture, x, *routing(tokens, seeded), slack)


@pytest.mark.parametrize("num_threads", [1, 2, 3, 17])
def test_all_tokens_with_one_expert(
    num_threads: int, dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    torch.set_num_threads(num_threads)
    mixture = Mixture(dtype, seeded)
    x = torch.randn(50, HIDDEN, generator=seeded).to(dtype)
    ids = torch.full((50, 1), EXPERTS - 1, dtype=torch.int32)
    assert_sums(mixture, x, torch.rand(50, 1, generator=seeded), ids)


def test_experts_of_other_ranks_add_nothing(dtype: torch.dtype, seeded: torch.Generator) -> None:
    mixture = Mixture(dtype, seeded, "int8", "int8")
    x = torch.randn(6, HIDDEN, generator=seeded).to(dtype)
    weights, ids = routing(6, seeded)
    ids[0, 1] = ids[3, 0] = -1
    ids[5] = -1
    assert_sums(mixture, x, weights, ids)
    assert (mixture(x, weights, ids)[5] == 0).all()
    assert (mixture(x, weights, torch.full_like(ids, -1)) == 0).all()


@pytest.mark.parametrize("kind", ["float", "int4"])
def test_a_token_does_not_depend_on_the_others(
    kind: str, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    mixture = Mixture(dtype, seeded, kind, kind)
    x = torch.randn(40, HIDDEN, generator=seeded).to(dtype)
    weights, ids = routing(40, seeded)
    together = mixture(x, weights, ids)
    alone = [mixture(x[t : t + 1], weights[t : t + 1], ids[t : t + 1]) for t in range(40)]
    assert torch.equal(together, torch.cat(alone))


def test_strided_rows_are_read_and_written_where_they_lie(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    mixture = Mixture(dtype, seeded)
    x = guarded(5, HIDDEN, dtype, torch.randn(5, HIDDEN, generator=seeded).to(dtype))
    out = guarded(5, HIDDEN, dtype)
    weights, ids = routing(5, seeded)
    mixture.into(out.rows, x.rows, weights, ids)
    assert torch.equal(out.rows, mixture(x.rows.contiguous(), weights, ids))
    out.assert_intact()


@pytest.mark.parametrize("kind", ["float", "int8"])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_replay_follows_another_choice_of_experts(
    kind: str, num_threads: int, dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    torch.set_num_threads(num_threads)
    mixture = Mixture(dtype, seeded, kind, kind)
    x = torch.randn(4, HIDDEN, generator=seeded).to(dtype)
    weights, ids = routing(4, seeded, TOP_K)  # few experts at first, then others
    recording = StepRecording([], [x, weights, ids])
    with recording:
        recording.output = mixture(x, weights, ids)
    assert recording.error == ""
    for _ in range(3):
        x.normal_(generator=seeded)
        new_weights, new_ids = routing(4, seeded)
        weights.copy_(new_weights)
        ids.copy_(new_ids)
        assert torch.equal(recording.replay([]), mixture(x, weights, ids))


def test_no_tokens(dtype: torch.dtype, seeded: torch.Generator) -> None:
    mixture = Mixture(dtype, seeded)
    empty = torch.empty(0, TOP_K)
    assert mixture(torch.empty(0, HIDDEN, dtype=dtype), empty, empty.int()).shape == (0, HIDDEN)


def test_wrong_arguments_are_named(seeded: torch.Generator) -> None:
    mixture = Mixture(torch.float32, seeded)
    x = torch.randn(2, HIDDEN)
    weights, ids = routing(2, seeded)
    with pytest.raises(IndexError, match="chose an expert that is not one of 7"):
        mixture(x, weights, torch.full_like(ids, EXPERTS))
    with pytest.raises(TypeError, match="topk_ids has dtype Long"):
        mixture(x, weights, ids.long())
    with pytest.raises(ValueError, match="topk_weights has shape"):
        mixture(x, weights[:1], ids)
    with pytest.raises(TypeError, match="packed as Float"):
        mixture(x.bfloat16(), weights, ids)
    both, down = torch.randn(2 * INTERMEDIATE, HIDDEN), torch.randn(HIDDEN, INTERMEDIATE)
    out = torch.empty_like(x)
    with pytest.raises(ValueError, match="packed in 2 parts"):
        Experts([PackedLinear(both)], [PackedLinear(down)], "silu")(out, x, weights, ids * 0)
    with pytest.raises(ValueError, match="packed in 2 parts"):
        Experts([pack_int8(both)], [PackedLinear(down)], "silu")(out, x, weights, ids * 0)
    packed, up = PackedLinear(both, parts=2), both[:INTERMEDIATE]
    with pytest.raises(ValueError, match="without a gate must be packed in 1 part"):
        Experts([PackedLinear(up, parts=2)], [PackedLinear(down)], "relu2")(
            out, x, weights, ids * 0
        )
    with pytest.raises(ValueError, match="swigluoai takes a gate, which these experts have not"):
        Experts([PackedLinear(up)], [PackedLinear(down)], "swigluoai")(out, x, weights, ids * 0)
    with pytest.raises(ValueError, match="relu2 is not there with a gate, which these experts"):
        Experts([packed], [PackedLinear(down)], "relu2")(out, x, weights, ids * 0)
    with pytest.raises(ValueError, match="1 gate and up projections do not fit 2"):
        Experts([packed], [PackedLinear(down)] * 2, "silu")(out, x, weights, ids * 0)
    with pytest.raises(ValueError, match="the down projection of an expert is"):
        Experts([packed] * 2, [PackedLinear(down), packed], "silu")(out, x, weights, ids * 0)
    with pytest.raises(ValueError, match="must be quantized alike"):
        Experts([packed, pack_int8(both, 2)], [PackedLinear(down)] * 2, "silu")(
            out, x, weights, ids * 0
        )
    with pytest.raises(ValueError, match="activation 'relu' is unknown"):
        Experts([packed], [PackedLinear(down)], "relu")(out, x, weights, ids * 0)
