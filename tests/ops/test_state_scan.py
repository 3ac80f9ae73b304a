"""The recurrence of Mamba and Mamba-2 under the host's names."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from tests.ops.accuracy import assert_accurate
from tests.reference.state_scan import state_scan

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def indices(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclass
class Inputs:
    """Of one step, in the shapes of the reference."""

    x: torch.Tensor
    dt: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    d: torch.Tensor
    z: torch.Tensor
    dt_bias: torch.Tensor

    def reference(self, rows: slice, state: torch.Tensor, out: torch.Tensor) -> None:
        """Hold a sequence's result and new state, flat in ``out``, against the reference."""
        assert_accurate(
            out,
            lambda *given: state_scan(*given, True),
            self.x[rows],
            self.dt[rows],
            self.a,
            self.b[rows],
            self.c[rows],
            self.d,
            self.z[rows],
            self.dt_bias,
            state,
        )


def mamba2(
    tokens: int,
    heads: int,
    channels: int,
    groups: int,
    states: int,
    dtype: torch.dtype,
    seeded: torch.Generator,
) -> Inputs:
    """One dt and one a per head; x, b and c side by side in one projection, as models have them."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=seeded).to(dtype)

    projected = random(tokens, heads * channels + 2 * groups * states + 5)
    x, b, c, _ = projected.split([heads * channels, groups * states, groups * states, 5], 1)
    each = (-1, -1, channels)
    return Inputs(
        x.unflatten(1, (heads, channels)),
        random(tokens, heads)[..., None].expand(each),
        -torch.rand(heads, generator=seeded)[:, None, None].mul(4).expand(*each[1:], states),
        b.unflatten(1, (groups, states)),
        c.unflatten(1, (groups, states)),
        random(heads)[:, None].expand(each[1:]),
        random(tokens, heads, channels),
        random(heads)[:, None].expand(each[1:]),
    )


def mamba(
    tokens: int, channels: int, states: int, dtype: torch.dtype, seeded: torch.Generator
) -> Inputs:
    """A dt per channel and an a per channel and state, in one head."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=seeded)

    return Inputs(
        random(tokens, 1, channels).to(dtype),
        random(tokens, 1, channels).to(dtype),
        -4 * torch.rand(1, channels, states, generator=seeded),
        random(tokens, 1, states).to(dtype),
        random(tokens, 1, states).to(dtype),
        random(1, channels),
        random(tokens, 1, channels).to(dtype),
        random(1, channels),
    )


def update(
    state: torch.Tensor,
    given: Inputs,
    out: torch.Tensor,
    slots: torch.Tensor | None,
    starts: torch.Tensor | None,
    rows: slice = slice(None),
) -> None:
    torch.ops._C.selective_state_update_cpu(
        state,
        given.x[rows],
        given.dt[rows],
        given.a,
        given.b[rows],
        given.c[rows],
        given.d,
        given.z[rows],
        given.dt_bias,
        True,
        slots,
        slots,
        0,
        out[rows],
        None,
        starts,
    )


# heads, channels, groups, states: below, at and above the vectors, several blocks of channels.
SHAPES = [
    (1, 1, 1, 1),
    (2, 3, 1, 5),
    (4, 16, 2, 16),
    (6, 65, 3, 17),
    (2, 130, 1, 33),
    (3, 64, 1, 128),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("state_dtype", DTYPES[:2], ids=["states fp32", "states bf16"])
def test_sequences_match_reference(
    shape: tuple[int, int, int, int],
    state_dtype: torch.dtype,
    dtype: torch.dtype,
    seeded: torch.Generator,
) -> None:
    """New and continued sequences of several lengths in odd slots; one token where states are
    rounded."""
    heads, channels, _, states = shape
    starts = indices(0, 1, 1, 9, 12) if state_dtype == torch.float32 else indices(0, 1, 1, 2, 3)
    slots, resumed = indices(5, 4, 2, 1), torch.tensor([True, False, False, True])
    tokens = int(starts[-1])
    given = mamba2(tokens + 2, *shape, dtype, seeded)
    held = torch.randn(6, heads, channels, states, generator=seeded).to(state_dtype)
    before = held.clone()
    out = torch.full((tokens + 2, heads, channels), float("nan"), dtype=dtype)
    torch.ops.cpu_backend.state_scan(
        out,
        held,
        given.x,
        given.dt[..., 0],
        given.a[:, 0, 0],
        given.b,
        given.c,
        given.d[:, 0],
        given.z,
        given.dt_bias[:, 0],
        True,
        starts,
        slots,
        resumed,
    )
    assert (out[tokens:] == 0).all(), "tokens of no sequence"
    untouched = set(range(6))
    for i, slot in enumerate(slots.tolist()):
        rows = slice(int(starts[i]), int(starts[i + 1]))
        if rows.start == rows.stop:
            continue
        untouched.discard(slot)
        state = before[slot] if resumed[i] else torch.zeros_like(before[slot])
        both = torch.cat([out[rows].flatten().double(), held[slot].flatten().double()])
        coarser = max(dtype, state_dtype, key=lambda d: torch.finfo(d).eps)
        given.reference(rows, state, both.to(coarser))
    for slot in untouched:
        assert torch.equal(held[slot], before[slot])


@pytest.mark.parametrize("channels", [1, 5, 16, 65, 200])
@pytest.mark.parametrize("states", [1, 7, 16])
def test_mamba_matches_reference(
    channels: int, states: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    """Prompts channel by channel, as the host passes them, then single tokens."""
    given = mamba(11, channels, states, dtype, seeded)
    held = torch.randn(4, channels, states, generator=seeded)
    before = held.clone()
    starts, slots, resumed = indices(0, 7, 11), indices(2, 3), torch.tensor([False, True])

    def by_channel(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[:, 0].T.clone(memory_format=torch.contiguous_format)

    z = by_channel(given.z)
    torch.ops._C.selective_scan_fwd(
        by_channel(given.x),
        by_channel(given.dt),
        given.a[0],
        by_channel(given.b)[None],
        by_channel(given.c)[None],
        given.d[0],
        z,
        given.dt_bias[0],
        True,
        starts,
        slots,
        resumed,
        held,
        0,
        1024,
        None,
        None,
        None,
        None,
        None,
    )
    for i, slot in enumerate(slots.tolist()):
        rows = slice(int(starts[i]), int(starts[i + 1]))
        state = (before[slot] if resumed[i] else torch.zeros_like(before[slot]))[None]
        both = torch.cat([z.T[rows].flatten().double(), held[slot].flatten().double()])
        given.reference(rows, state, both.to(dtype))

    states_by_token = torch.zeros(4, channels, states)
    single = torch.empty(7, channels, dtype=dtype)
    for t in range(7):
        torch.ops._C.selective_state_update_cpu(
            states_by_token,
            given.x[t],
            given.dt[t],
            given.a[0],
            given.b[t],
            given.c[t],
            given.d[0],
            given.z[t],
            given.dt_bias[0],
            True,
            indices(1),
            indices(1),
            0,
            single[t : t + 1],
            None,
            None,
        )
    assert torch.equal(single, z.T[:7]), "a prompt and single tokens have the same bits"
    assert torch.equal(states_by_token[1], held[2])


@pytest.mark.parametrize("state_dtype", DTYPES)
def test_bits_do_not_depend_on_steps_batch_or_threads(
    state_dtype: torch.dtype, dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    shape = (4, 70, 2, 33)
    given = mamba2(30, *shape, dtype, seeded)
    torch.set_num_threads(2)
    together = torch.empty(30, 4, 70, dtype=dtype)
    held = torch.zeros(4, 4, 70, 33, dtype=state_dtype)
    update(held, given, together, indices(3, 1), indices(0, 17, 30))
    torch.set_num_threads(1)
    apart, alone = torch.empty_like(together), torch.zeros(3, 4, 70, 33, dtype=state_dtype)
    for begin, end in ((0, 1), (1, 2), (2, 9), (9, 17)):
        starts = indices(0, end - begin) if end - begin > 1 else None
        update(alone, given, apart, indices(2), starts, slice(begin, end))
    assert torch.equal(apart[:17], together[:17])
    assert torch.equal(alone[2], held[3])


def test_steps_that_are_given_ready(dtype: torch.dtype, seeded: torch.Generator) -> None:
    """``mamba_chunk_scan_fwd_cpu``: dt in fp32, without bias and softplus; no gate."""
    given = mamba2(9, 2, 20, 1, 19, dtype, seeded)
    dt = torch.rand(9, 2, generator=seeded)
    states = torch.randn(2, 2, 20, 19, generator=seeded)
    before = states.clone()
    out = torch.empty(9, 2, 20, dtype=dtype)
    starts = indices(0, 4, 9)
    torch.ops._C.mamba_chunk_scan_fwd_cpu(
        out, states, given.x, dt, given.a[:, 0, 0], given.b, given.c, given.d[:, 0].float(), None,
        starts
    )  # fmt: skip
    for i in range(2):
        rows = slice(int(starts[i]), int(starts[i + 1]))
        both = torch.cat([out[rows].flatten().double(), states[i].flatten().double()])
        assert_accurate(
            both.to(dtype),
            lambda *g: state_scan(*g[:6], None, None, g[6], False),
            given.x[rows],
            dt[rows][..., None].expand(-1, -1, 20),
            given.a,
            given.b[rows],
            given.c[rows],
            given.d,
            before[i],
        )


def test_padded_sequences_are_zeros_and_keep_states(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    given = mamba2(3, 2, 5, 1, 7, dtype, seeded)
    states = torch.randn(4, 2, 5, 7, generator=seeded)
    before = states.clone()
    out = torch.full((3, 2, 5), float("nan"), dtype=dtype)
    update(
        states, given, out, torch.tensor([[3, 1], [0, 1], [1, 1]], dtype=torch.int32)[:, 0], None
    )
    assert (out[1] == 0).all()
    assert torch.equal(states[[0, 2]], before[[0, 2]])
    for row, slot in ((0, 3), (2, 1)):
        both = torch.cat([out[row].flatten().double(), states[slot].flatten().double()])
        given.reference(slice(row, row + 1), before[slot], both.to(dtype))


def test_states_of_drafts_lie_in_a_row_of_slots(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    """The state after each token goes to the next slot; the one after the last accepted token of
    the step before is begun with.  The last sequence's prompt goes on."""
    given = mamba2(9, 4, 20, 2, 19, dtype, seeded)
    starts = indices(0, 3, 4, 9)
    slots = indices(1, 5, 3, 8, 2, 6, 7, 0, 0).view(3, 3)
    accepted = indices(2, 3, 0)
    before = torch.randn(9, 4, 20, 19, generator=seeded)
    states = before.clone()
    out = torch.full((9, 4, 20), float("nan"), dtype=dtype)

    def scan(
        out: torch.Tensor, states: torch.Tensor, rows: slice, starts: torch.Tensor,
        slots: torch.Tensor, accepted: torch.Tensor | None,
    ) -> None:  # fmt: skip
        torch.ops.cpu_backend.state_scan(
            out, states, given.x[rows], given.dt[rows], given.a, given.b[rows], given.c[rows],
            given.d, given.z[rows], given.dt_bias, True, starts, slots,
            torch.ones(len(slots), dtype=torch.bool), accepted,
        )  # fmt: skip

    scan(out, states, slice(0, 9), starts, slots, accepted)
    alone, expected = before.clone(), torch.empty_like(out)
    for sequence, begins_with in enumerate((5, 6, 7)):
        state = before[begins_with : begins_with + 1].clone()
        rows = range(int(starts[sequence]), int(starts[sequence + 1]))
        for token, row in enumerate(rows):
            one = slice(row, row + 1)
            scan(expected[one], state, one, indices(0, 1), indices(0), None)
            alone[slots[sequence, token] if sequence < 2 else 7] = state[0]
    assert torch.equal(out, expected)
    assert torch.equal(states, alone)

    # The host's name; where the states go may be said apart.
    states = before.clone()
    torch.ops._C.selective_state_update_cpu(
        states, given.x[:4], given.dt[:4], given.a, given.b[:4], given.c[:4], given.d,
        given.z[:4], given.dt_bias, True, slots[:2], indices(0, 4, 7, 3, 3, 3).view(2, 3), -1,
        out[:4], accepted[:2], starts[:3],
    )  # fmt: skip
    assert torch.equal(out, expected)
    assert torch.equal(states[[0, 4, 7, 3]], alone[[1, 5, 3, 8]])


def test_states_may_go_to_another_slot(seeded: torch.Generator) -> None:
    given = mamba2(2, 2, 5, 1, 7, torch.float32, seeded)
    states = torch.randn(4, 2, 5, 7, generator=seeded)
    in_place, moved = states.clone(), states.clone()
    expected, out = torch.empty(2, 2, 5), torch.empty(2, 2, 5)
    update(in_place, given, expected, indices(1, 2), None)
    torch.ops._C.selective_state_update_cpu(
        moved, given.x, given.dt, given.a, given.b, given.c, given.d, given.z, given.dt_bias, True,
        indices(1, 2), indices(3, 2), 0, out, None, None
    )  # fmt: skip
    assert torch.equal(out, expected)
    assert torch.equal(moved[3], in_place[1])
    assert torch.equal(moved[2], in_place[2])
    assert torch.equal(moved[1], states[1])


def test_scans_refuse_what_they_cannot_do(seeded: torch.Generator) -> None:
    given = mamba2(2, 2, 5, 1, 7, torch.float32, seeded)
    states, out = torch.zeros(2, 2, 5, 7), torch.empty(2, 2, 5)

    def run(**changed: torch.Tensor) -> None:
        names = {"x": given.x, "a": given.a, "b": given.b, "states": states, **changed}
        torch.ops._C.selective_state_update_cpu(
            names["states"], names["x"], given.dt, names["a"], names["b"], given.c, None, None,
            None, True, None, None, 0, out, names.get("accepted"), None
        )  # fmt: skip

    with pytest.raises(TypeError, match="B has dtype BFloat16 but x has Float"):
        run(b=given.b.bfloat16())
    with pytest.raises(TypeError, match="A has dtype Double, expected Float"):
        run(a=given.a.double())
    with pytest.raises(ValueError, match="state has shape"):
        run(states=states[:, :1])
    with pytest.raises(ValueError, match="2 heads cannot share 3 groups evenly"):
        run(b=given.b.expand(2, 3, 7))
    with pytest.raises(ValueError, match="2 sequences need a row of slots and a number of"):
        run(accepted=indices(1, 1))
