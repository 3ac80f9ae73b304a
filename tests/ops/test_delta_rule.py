"""Gated delta nets: gates, the rule over the requests of a step, and the host's ops."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace

import pytest
import torch

from cpu_backend import ops
from tests.ops.accuracy import ODD_SIZES, assert_accurate
from tests.reference import delta_rule as reference

# key heads, heads, key size, value size
SHAPES = [(1, 1, 1, 1), (2, 4, 15, 33), (2, 2, 64, 64), (1, 3, 40, 129), (2, 4, 128, 128)]
DECAYS = ("of heads", "of keys")
LENGTHS = (1, 17, 3, 40, 1)  # of requests: decodes, and more and fewer than are prepared at once


@dataclass
class Case:
    """Requests of LENGTHS tokens with states in slots of a larger pool."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    states: torch.Tensor
    slots: torch.Tensor
    resumes: torch.Tensor
    starts: torch.Tensor
    beta_range: float = 1.0
    accepted: torch.Tensor | None = None  # slots are rows

    def run(self, *, states: torch.Tensor | None = None) -> torch.Tensor:
        out = torch.full_like(self.value, torch.nan)
        torch.ops.cpu_backend.gated_delta_rule(
            out, self.query, self.key, self.value, self.a, self.b, self.a_log, self.dt_bias,
            self.states if states is None else states, self.slots, self.resumes, self.starts,
            self.accepted, self.beta_range,
        )  # fmt: skip
        return out

    def part(self, request: int, begin: int, end: int, resumes: bool) -> Case:
        """One request's tokens [begin, end) as a step of its own; shares the states."""
        first = int(self.starts[request])
        tokens = slice(first + begin, first + end)
        given = (x[tokens] for x in (self.query, self.key, self.value, self.a, self.b))
        slot = self.slots[request : request + 1].clone()
        starts = torch.tensor([0, end - begin], dtype=torch.int32)
        return Case(
            *given, self.a_log, self.dt_bias, self.states, slot, torch.tensor([resumes]), starts,
            self.beta_range,
        )  # fmt: skip

    def inputs(self, request: int) -> tuple[torch.Tensor, ...]:
        """What the reference needs of one request."""
        tokens = slice(int(self.starts[request]), int(self.starts[request + 1]))
        state = self.states[self.slots[request]].clone()
        if not self.resumes[request]:
            state.zero_()
        given = (x[tokens] for x in (self.query, self.key, self.value, self.a, self.b))
        return *given, self.a_log, self.dt_bias, state


def rule(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, a: torch.Tensor, b: torch.Tensor,
    a_log: torch.Tensor, dt_bias: torch.Tensor, state: torch.Tensor, beta_range: float = 1.0,
) -> torch.Tensor:  # fmt: skip
    decay, beta = reference.gates(a, b, a_log, dt_bias, beta_range)
    return reference.delta_rule(query, key, value, decay, beta, state)


def _outputs(tokens: int, beta_range: float, *inputs: torch.Tensor) -> torch.Tensor:
    return rule(*inputs, beta_range)[:tokens]


def _state(tokens: int, beta_range: float, *inputs: torch.Tensor) -> torch.Tensor:
    return rule(*inputs, beta_range)[tokens:].transpose(0, 1)


def make_case(
    shape: tuple[int, int, int, int], dtype: torch.dtype, seeded: torch.Generator,
    lengths: tuple[int, ...] = LENGTHS, state_dtype: torch.dtype = torch.float32,
    decays: str = "of heads",
) -> Case:  # fmt: skip
    """decays: "of heads", or "of keys" with one for each of their channels."""
    key_heads, heads, key_dim, value_dim = shape
    tokens = sum(lengths)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=seeded)

    # As a layer has them: cut out of one projection, the states out of pages with other things.
    channels = 2 * key_heads * key_dim + heads * value_dim
    mixed = random(tokens, channels + 3).to(dtype)[:, :channels]
    sizes = [key_heads * key_dim, key_heads * key_dim, heads * value_dim]
    query, key, value = mixed.split(sizes, dim=1)
    pages = random(len(lengths) + 3, heads * key_dim * value_dim + 16).to(state_dtype)
    by_key = decays == "of keys"
    per_head = heads * key_dim if by_key else heads
    b, a = random(tokens, heads + per_head).to(dtype).split([heads, per_head], dim=1)
    return Case(
        query.unflatten(1, (key_heads, key_dim)),
        key.unflatten(1, (key_heads, key_dim)),
        value.unflatten(1, (heads, value_dim)),
        a.unflatten(1, (heads, key_dim)) if by_key else a,
        b,
        random(heads),
        random(per_head).to(dtype),
        pages[:, 16:].unflatten(1, (heads, key_dim, value_dim)),
        torch.randperm(len(lengths) + 3, generator=seeded)[: len(lengths)].int(),
        torch.arange(len(lengths)) % 3 > 0,
        torch.tensor([0, *lengths]).cumsum(0).int(),
    )


@pytest.mark.parametrize("beta_range", [1.0, 2.0])
@pytest.mark.parametrize("decays", DECAYS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_rule_matches_the_reference(
    shape: tuple[int, int, int, int], decays: str, beta_range: float, dtype: torch.dtype,
    seeded: torch.Generator,
) -> None:  # fmt: skip
    case = make_case(shape, dtype, seeded, decays=decays)
    case.beta_range = beta_range
    expected = [case.inputs(request) for request in range(len(LENGTHS))]
    before = case.states.clone()
    out = case.run()
    for request, given in enumerate(expected):
        tokens = slice(int(case.starts[request]), int(case.starts[request + 1]))
        state = case.states[case.slots[request]]
        outputs, left = (
            functools.partial(_outputs, LENGTHS[request], beta_range),
            functools.partial(_state, LENGTHS[request], beta_range),
        )
        assert_accurate(out[tokens], outputs, *given)
        assert_accurate(state, left, *given)
    others = [slot for slot in range(len(before)) if slot not in case.slots.tolist()]
    assert torch.equal(case.states[others], before[others])


@pytest.mark.parametrize("decays", DECAYS)
@pytest.mark.parametrize("state_dtype", ["float32", "dtype"])
def test_bits_depend_on_no_batch_and_no_place_where_a_step_ends(
    state_dtype: str, decays: str, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    kept = torch.float32 if state_dtype == "float32" else dtype
    case = make_case((2, 4, 24, 72), dtype, seeded, state_dtype=kept, decays=decays)
    before = case.states.clone()
    out, after = case.run(), case.states.clone()
    case.states.copy_(before)
    for request, length in enumerate(LENGTHS):
        first, resumes = int(case.starts[request]), bool(case.resumes[request])
        cuts = sorted({0, min(1, length), min(18, length), length})
        for begin, end in itertools.pairwise(cuts):
            part = case.part(request, begin, end, resumes or begin > 0).run()
            assert torch.equal(part, out[first + begin : first + end])
    assert torch.equal(case.states, after)


def test_a_request_without_a_slot_is_passed_over(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    case = make_case((1, 2, 8, 8), dtype, seeded)
    case.slots[1] = -1
    before = case.states.clone()
    out = case.run()
    tokens = slice(int(case.starts[1]), int(case.starts[2]))
    assert (out[tokens] == 0).all()
    assert not out.isnan().any()
    unused = [slot for slot in range(len(before)) if slot not in case.slots.tolist()]
    assert torch.equal(case.states[unused], before[unused])


@pytest.mark.parametrize("heads", ODD_SIZES)
def test_gates_match_the_reference(heads: int, dtype: torch.dtype, seeded: torch.Generator) -> None:
    both = torch.randn(5, 2 * heads, generator=seeded).to(dtype) * 12  # far into both tails
    b, a = both.chunk(2, dim=1)
    a_log = torch.randn(heads, generator=seeded)
    bias = torch.randn(heads, generator=seeded).to(dtype)
    decay, beta = torch.ops._C.fused_gdn_gating_cpu(a_log, a, b, bias)
    assert_accurate(decay[0], lambda *x: reference.gates(*x)[0], a, b, a_log, bias)
    assert_accurate(beta[0], lambda *x: reference.gates(*x)[1], a, b, a_log, bias)


def test_equal_decays_of_keys_are_those_of_their_head(seeded: torch.Generator) -> None:
    """And a channel whose key is zero keeps what its own decay leaves of the state."""
    case = make_case((2, 4, 24, 72), torch.float32, seeded, decays="of keys")
    case.a_log.zero_()
    case.dt_bias.zero_()
    case.a = case.a[..., :1].expand(case.a.shape).clone()
    case.key[..., 5] = 0
    before = case.states.clone()
    out, after = case.run(), case.states.clone()
    case.states.copy_(before)
    alone = replace(case, a=case.a[..., 0].contiguous(), dt_bias=torch.zeros(4))
    torch.testing.assert_close(out, alone.run())
    torch.testing.assert_close(after, case.states)

    case.states.copy_(before)
    case.a[..., 5] = 30.0  # that channel alone forgets
    case.run()
    resumed = case.slots[case.resumes].long()
    left = case.states[resumed]
    assert left[:, :, 5].abs().max() < 1e-3 * before[resumed][:, :, 5].abs().max()
    assert left[:, :, 6].abs().max() > 1e-3


def test_small_decays_are_as_precise_as_large_ones() -> None:
    a = torch.linspace(-80, 20, 201)[:, None]
    zero = torch.zeros(1)
    decay, _ = torch.ops._C.fused_gdn_gating_cpu(zero, a, a, zero)
    exact, _ = reference.gates(a.double(), a.double(), zero.double(), zero.double())
    assert ((decay[0] - exact) / exact).abs().max() < 8 * torch.finfo(torch.float32).eps


def test_the_hosts_ops_give_the_same(dtype: torch.dtype, seeded: torch.Generator) -> None:
    case = make_case((2, 4, 24, 72), dtype, seeded)
    case.resumes.fill_(True)
    before = case.states.clone()
    out, after = case.run(), case.states.clone()

    case.states.copy_(before)
    updated = torch.ops._C.fused_sigmoid_gating_delta_rule_update_cpu(
        case.a_log, case.dt_bias, case.query[None], case.key[None], case.value[None], case.a,
        case.b, case.states, case.slots, case.starts, True,
    )  # fmt: skip
    assert torch.equal(updated.squeeze(1), out)
    assert torch.equal(case.states, after)

    case.states.copy_(before)
    decay, beta = torch.ops._C.fused_gdn_gating_cpu(case.a_log, case.a, case.b, case.dt_bias)
    chunked, final = torch.ops._C.chunk_gated_delta_rule_cpu(
        case.query[None], case.key[None], case.value[None], decay, beta, case.states, True,
        case.starts, False, True, case.slots, 1e-6,
    )  # fmt: skip
    assert torch.equal(chunked.squeeze(0), out)
    assert torch.equal(case.states, after)
    assert torch.equal(final, after[case.slots.long()])


def test_states_of_drafts_lie_in_a_row_of_slots(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    """The state after each token goes to the next slot; the one after the last accepted token of
    the step before is begun with."""
    case = make_case((1, 2, 16, 20), dtype, seeded, lengths=(3, 3, 20))
    states = torch.randn(10, 2, 16, 20, generator=seeded)
    slots = torch.tensor([[1, 5, 3], [8, 2, 6], [9, 0, 0]], dtype=torch.int32)
    accepted = torch.tensor([2, 3, 0], dtype=torch.int32)  # the last one's prompt goes on
    case.states, case.resumes = states.clone(), torch.ones(3, dtype=torch.bool)
    case.slots, case.accepted = slots, accepted
    out = case.run()
    written = {9}
    for request in range(2):
        state = states[slots[request, accepted[request] - 1]][None].clone()
        for token in range(3):
            alone = case.part(request, token, token + 1, resumes=True)
            alone.slots.zero_()
            assert torch.equal(alone.run(states=state), out[3 * request + token][None])
            assert torch.equal(case.states[slots[request, token]], state[0])
        written.update(slots[request].tolist())
    prompt = case.part(2, 0, 20, resumes=True)
    prompt.slots, state = torch.zeros(1, dtype=torch.int32), states[9:].clone()
    assert torch.equal(prompt.run(states=state), out[6:])
    assert torch.equal(case.states[9], state[0])
    for slot in set(range(10)) - written:
        assert torch.equal(case.states[slot], states[slot])
    # The host's name for requests that all have drafts.
    drafts = states.clone()
    host = torch.ops._C.fused_sigmoid_gating_delta_rule_update_spec_cpu(
        case.a_log, case.dt_bias, case.query[:6], case.key[:6], case.value[:6], case.a[:6],
        case.b[:6], drafts, slots[:2], accepted[:2], case.starts[:3], True,
    )  # fmt: skip
    assert torch.equal(host, out[:6])
    assert torch.equal(drafts[:9], case.states[:9])


@pytest.mark.parametrize("decays", DECAYS)
def test_a_recorded_rule_follows_its_step(decays: str, seeded: torch.Generator) -> None:
    shape = (1, 2, 16, 20)
    first = make_case(shape, torch.float32, seeded, lengths=(4, 1), decays=decays)
    second = make_case(shape, torch.float32, seeded, lengths=(1, 2, 2), decays=decays)
    given = [first.query, first.key, first.value, first.a, first.b, first.a_log, first.dt_bias]
    pool = torch.randn(6, 2, 16, 20, generator=seeded)
    first.states = second.states = pool
    step = [first.starts, first.slots, first.resumes]

    def forward() -> torch.Tensor:
        return first.run()

    refused = ops.StepRecording(step, [*given, pool])
    with refused:
        refused.output = forward()
    assert "changes memory that outlives the step" in refused.error

    recording = ops.StepRecording(step, [*given, pool], [pool])
    with recording:
        recording.output = forward()
    assert recording.error == ""
    before = pool.clone()
    for name in ("query", "key", "value", "a", "b", "a_log", "dt_bias"):
        setattr(second, name, getattr(first, name))
    expected = second.run()
    after = pool.clone()
    pool.copy_(before)
    recording.fill_with_garbage()
    replayed = recording.replay([second.starts, second.slots, second.resumes])
    assert torch.equal(replayed, expected)
    assert torch.equal(pool, after)


def test_other_layouts_and_types_are_refused(seeded: torch.Generator) -> None:
    case = make_case((1, 2, 16, 20), torch.float32, seeded)
    with pytest.raises(TypeError, match="mamba-ssm-cache-dtype"):
        case.run(states=case.states.bfloat16())
    with pytest.raises(ValueError, match="expected dense heads"):
        case.run(states=case.states.transpose(2, 3))
    wrong = make_case((1, 2, 16, 20), torch.float32, seeded, decays="of keys")
    wrong.a, wrong.dt_bias = wrong.a[..., :8], torch.zeros(16)
    with pytest.raises(ValueError, match="8 decays of a head cannot belong to keys of 16"):
        wrong.run()
