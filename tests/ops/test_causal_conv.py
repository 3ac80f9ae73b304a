"""Causal convolution under the host's names."""

from __future__ import annotations

import pytest
import torch

from tests.ops.accuracy import ODD_SIZES, assert_accurate, guarded
from tests.reference.causal_conv import causal_conv

PAD = -1


def random(shape: tuple[int, ...], dtype: torch.dtype, seeded: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=seeded).to(dtype)


def indices(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    states: torch.Tensor | None,
    starts: torch.Tensor | None,
    slots: torch.Tensor | None = None,
    continued: torch.Tensor | None = None,
    *,
    silu: bool = True,
    packed: bool = False,
) -> torch.Tensor:
    """x and result [tokens, channels]."""
    op = torch.ops._C.causal_conv1d_fwd_cpu
    result: torch.Tensor = op(
        x.T, weight, bias, states, starts, slots, continued, silu, PAD, packed
    )
    return result.T


@pytest.mark.parametrize("channels", [*ODD_SIZES, 200])
@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5])
def test_sequences_match_reference(
    channels: int, taps: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    """Several sequences, shorter and longer than the state, new and continued, in odd slots."""
    starts = indices(0, 1, 1, 4, 13, 15)
    slots = indices(5, 4, 2, 0, 3)
    continued = torch.tensor([True, False, True, False, True])
    x = guarded(15, channels, dtype, random((15, channels), dtype, seeded))
    weight = random((channels, taps), dtype, seeded)
    bias = random((channels,), dtype, seeded) if taps != 3 else None
    silu = taps % 2 == 0
    states = random((6, taps - 1, channels), dtype, seeded).transpose(1, 2)
    before = states.clone()
    out = forward(x.rows, weight, bias, states, starts, slots, continued, silu=silu)
    x.assert_intact()
    untouched = set(range(6))
    for i, slot in enumerate(slots.tolist()):
        own = x.rows[starts[i] : starts[i + 1]]
        if len(own) == 0:
            continue
        untouched.discard(slot)
        state = before[slot] if continued[i] else torch.zeros_like(before[slot])
        assert_accurate(
            out[starts[i] : starts[i + 1]],
            lambda x, w, b, s: causal_conv(x, w, b, s, silu),
            own,
            weight,
            bias,
            state,
        )
        kept = torch.cat([state.T, own])[len(own) :].T
        assert torch.equal(states[slot], kept), "the state is the last inputs"
    for slot in untouched:
        assert torch.equal(states[slot], before[slot])


def test_bits_do_not_depend_on_where_steps_begin(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x, weight = random((40, 67), dtype, seeded), random((67, 4), dtype, seeded)
    bias = random((67,), dtype, seeded)
    whole_state = torch.zeros(1, 67, 3, dtype=dtype)
    whole = forward(x, weight, bias, whole_state, indices(0, 40), indices(0))
    states = random((3, 67, 3), dtype, seeded)  # what a slot held before is not read
    parts = []
    for begin, end in ((0, 1), (1, 3), (3, 20), (20, 21), (21, 40)):
        part = forward(
            x[begin:end],
            weight,
            bias,
            states,
            indices(0, end - begin),
            indices(2),
            torch.tensor([begin > 0]),
        )
        parts.append(part)
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(states[2], whole_state[0])

    states[1] = 0
    single = [
        torch.ops._C.causal_conv1d_update_cpu_vec(
            row[None], states, weight, bias, "silu", indices(1), None, 0
        )
        for row in x
    ]
    assert torch.equal(torch.cat(single), whole)
    assert torch.equal(states[1], whole_state[0])


def test_bits_do_not_depend_on_the_batch_or_threads(
    dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    x, weight = random((30, 300), dtype, seeded), random((300, 4), dtype, seeded)
    starts, slots = indices(0, 7, 8, 30), indices(2, 0, 1)
    torch.set_num_threads(2)
    states = torch.zeros(3, 300, 3, dtype=dtype)
    together = forward(x, weight, None, states, starts, slots)
    torch.set_num_threads(1)
    for i in range(3):
        alone = torch.zeros(1, 300, 3, dtype=dtype)
        own = x[starts[i] : starts[i + 1]]
        result = forward(own, weight, None, alone, indices(0, len(own)), indices(0))
        assert torch.equal(result, together[starts[i] : starts[i + 1]])
        assert torch.equal(alone[0], states[slots[i]])


def test_inputs_of_refused_drafts_are_taken_back(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    """Two steps of drafts, of which the first ones are accepted, beside a prompt in two parts."""
    weight, bias = random((35, 4), dtype, seeded), random((35,), dtype, seeded)
    states = random((6, 35, 5), dtype, seeded)  # of four taps and two drafts
    before = states.clone()
    slots = indices(4, 1, 0, 2, 3, 0, 5, 0, 0).view(3, 3)
    resumes = torch.tensor([True, True, False])

    def step(x: torch.Tensor, starts: torch.Tensor, *accepted: int) -> torch.Tensor:
        convolved: torch.Tensor = torch.ops.cpu_backend.causal_conv(
            x, weight, bias, states, starts, slots, resumes, indices(*accepted), True
        )
        return convolved

    def expected(history: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return forward(x, weight, bias, history[None].clone(), indices(0, len(x)), indices(0),
                       torch.tensor([True]))  # fmt: skip

    x = random((3 + 1 + 6, 35), dtype, seeded)
    out = step(x, indices(0, 3, 4, 10), 2, 1, 0)
    first, second = before[4, :, 1:4], before[2, :, :3]
    assert torch.equal(out[:3], expected(first, x[:3]))
    assert torch.equal(out[3:4], expected(second, x[3:4]))
    assert torch.equal(out[4:], expected(torch.zeros_like(first), x[4:]))
    untouched = [0, 1, 3]
    assert torch.equal(states[untouched], before[untouched])

    # Of the first one's three tokens two were accepted, of the second one's one its only one.
    first = torch.cat([first, x[:2].T], 1)[:, -3:]
    second = torch.cat([second, x[3:4].T], 1)[:, -3:]
    third = x[4:].T[:, -3:]
    resumes[2] = True
    x = random((2 + 3 + 1, 35), dtype, seeded)
    out = step(x, indices(0, 2, 5, 6), 2, 1, 1)
    assert torch.equal(out[:2], expected(first, x[:2]))
    assert torch.equal(out[2:5], expected(second, x[2:5]))
    assert torch.equal(out[5:], expected(third, x[5:]))

    # The host's name for requests that have as many drafts each.
    x = random((2, 3, 35), dtype, seeded)
    history = torch.stack([states[4, :, 1:4], states[2, :, 2:5]])
    out = torch.ops._C.causal_conv1d_update_cpu(
        x, states, weight, bias, True, indices(2, 3), indices(4, 2), PAD, False
    )
    for i in range(2):
        assert torch.equal(out[i], expected(history[i], x[i]))


def test_weights_are_taken_in_every_form(dtype: torch.dtype, seeded: torch.Generator) -> None:
    x, weight = random((9, 35), dtype, seeded), random((35, 4), dtype, seeded)
    starts = indices(0, 9)
    expected = forward(x, weight, None, None, starts)
    packed = torch.ops._C.causal_conv1d_weight_pack(weight)
    assert torch.equal(forward(x, packed, None, None, starts, packed=True), expected)
    as_loaded = weight.view(35, 1, 4)
    for packed_flag in (False, True):
        assert torch.equal(forward(x, as_loaded, None, None, starts, packed=packed_flag), expected)


def test_states_are_taken_in_both_layouts(dtype: torch.dtype, seeded: torch.Generator) -> None:
    x, weight = random((9, 35), dtype, seeded), random((35, 4), dtype, seeded)
    channels_last = random((2, 3, 35), dtype, seeded)
    channels_first = channels_last.transpose(1, 2).contiguous()
    results = [
        forward(x, weight, None, states, indices(0, 9), indices(1), torch.tensor([True]))
        for states in (channels_last.transpose(1, 2), channels_first)
    ]
    assert torch.equal(*results)
    assert torch.equal(channels_last.transpose(1, 2), channels_first)


def test_batches_of_equal_lengths(dtype: torch.dtype, seeded: torch.Generator) -> None:
    """[batch, channels, length], with and without states."""
    x, weight = random((3, 35, 5), dtype, seeded), random((35, 4), dtype, seeded)
    result = torch.ops._C.causal_conv1d_fwd_cpu(
        x, weight, None, None, None, None, None, True, PAD, False
    )
    states = torch.zeros(3, 35, 3, dtype=dtype)
    updated = torch.ops._C.causal_conv1d_update_cpu(
        x, states, weight, None, True, None, None, PAD, False
    )
    assert result.shape == updated.shape == x.shape
    for i in range(3):
        assert torch.equal(result[i].T, forward(x[i].T, weight, None, None, indices(0, 5)))
        assert torch.equal(updated[i], result[i])
        assert torch.equal(states[i], x[i][:, 2:])


def test_padded_sequences_are_zeros_and_keep_states(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x, weight = random((4, 35), dtype, seeded), random((35, 4), dtype, seeded)
    states = random((4, 35, 3), dtype, seeded)
    before = states.clone()
    slots = torch.tensor([[3, 9], [0, 9], [1, 9], [0, 9]], dtype=torch.int32)[:, 0]  # strided
    out = torch.ops._C.causal_conv1d_update_cpu_vec(x, states, weight, None, "silu", slots, None, 0)
    assert (out[[1, 3]] == 0).all()
    assert torch.equal(states[[0, 2]], before[[0, 2]])
    for row, slot in ((0, 3), (2, 1)):
        assert_accurate(
            out[row : row + 1],
            lambda x, w, s: causal_conv(x, w, None, s, True),
            x[row : row + 1],
            weight,
            before[slot],
        )
    varlen = torch.ops._C.causal_conv1d_update_cpu_vec(
        x, before, weight, None, None, indices(3), indices(0, 2), 0
    )
    assert (varlen[2:] == 0).all(), "tokens of no sequence"


def test_convolutions_refuse_what_they_cannot_do() -> None:
    x, weight, states = torch.ones(2, 8), torch.ones(8, 4), torch.zeros(2, 8, 3)
    update = torch.ops._C.causal_conv1d_update_cpu_vec
    with pytest.raises(TypeError, match="conv_states has dtype BFloat16 but x has Float"):
        update(x, states.bfloat16(), weight, None, None, None, None, 0)
    with pytest.raises(ValueError, match="conv_states has shape"):
        update(x, states[:, :, :2], weight, None, None, None, None, 0)
    with pytest.raises(ValueError, match="followed by silu or nothing, not by gelu"):
        update(x, states, weight, None, "gelu", None, None, 0)
    with pytest.raises(TypeError, match="indices of states has dtype Long"):
        update(x, states, weight, None, None, torch.tensor([0, 1]), None, 0)
    with pytest.raises(ValueError, match=r"beside num_accepted_tokens x is \[batch, length"):
        torch.ops._C.causal_conv1d_update_cpu(
            x, states, weight, None, True, indices(1, 1), None, PAD, False
        )
    with pytest.raises(ValueError, match="holds no inputs of 2 drafts"):
        torch.ops._C.causal_conv1d_update_cpu(
            x[:, None].expand(2, 2, 8), states, weight, None, True, indices(1, 1), indices(0, 1),
            PAD, False,
        )  # fmt: skip
    with pytest.raises(ValueError, match=r"conv_states has shape .* expected \[slots, 8, 4\]"):
        torch.ops.cpu_backend.causal_conv(
            x, weight, None, states, indices(0, 1, 2), indices(0, 1, 1, 0).view(2, 2),
            torch.ones(2, dtype=torch.bool), indices(1, 1), True,
        )  # fmt: skip
