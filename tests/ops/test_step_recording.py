"""A recorded sequence of ops, replayed on other data, against the same ops run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from cpu_backend import ops
from tests.ops.attention_case import Case, Shape, halves, make_case, merges, plan
from tests.reference.attention import Masking

HIDDEN, INTERMEDIATE = 48, 80


def record(function: Callable[[], torch.Tensor], *step_data: torch.Tensor) -> ops.StepRecording:
    recording = ops.StepRecording(list(step_data))
    with recording:
        recording.output = function()
    return recording


def block(dtype: torch.dtype, seeded: torch.Generator) -> Callable[[torch.Tensor], torch.Tensor]:
    """Norm, gate-up, activation and down with a residual, as a decoder layer has them."""

    def random(*size: int) -> torch.Tensor:
        return (torch.randn(size, generator=seeded) / 8).to(dtype)

    gate_up = ops.PackedLinear(random(2 * INTERMEDIATE, HIDDEN))
    down = ops.PackedLinear(random(HIDDEN, INTERMEDIATE))
    weight = random(HIDDEN) + 1

    def forward(x: torch.Tensor) -> torch.Tensor:
        residual = x * 1  # of another library
        hidden = torch.empty_like(x)
        torch.ops._C.rms_norm(hidden, x, weight, 1e-5)
        for _ in range(3):
            both = gate_up(hidden)
            act = torch.empty(x.shape[0], INTERMEDIATE, dtype=dtype)
            torch.ops._C.silu_and_mul(act, both)
            hidden = down(act)
            torch.ops._C.fused_add_rms_norm(hidden, residual, weight, 1e-5)
        return hidden

    return forward


@pytest.mark.parametrize("count", [1, 2, 5, 64])
@pytest.mark.parametrize("num_threads", [1, 2, 3, 17])
def test_replay_equals_running_again(
    count: int, num_threads: int, dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    torch.set_num_threads(num_threads)
    forward = block(dtype, seeded)
    x = torch.randn(count, HIDDEN, generator=seeded).to(dtype)
    recording = record(lambda: forward(x))
    assert recording.error == ""
    first = recording.output.clone()
    assert torch.equal(first, forward(x))
    for _ in range(3):
        x.copy_(torch.randn(count, HIDDEN, generator=seeded))
        assert torch.equal(recording.replay([]), forward(x))
    assert not torch.equal(first, forward(x))


def test_dead_tensors_lend_their_memory_within_a_recording(seeded: torch.Generator) -> None:
    forward = block(torch.float32, seeded)
    x = torch.randn(1, HIDDEN, generator=seeded)
    seen = []

    def function() -> torch.Tensor:
        for _ in range(2):
            dead = torch.empty(1000)
            seen.append(dead.data_ptr())
            del dead
        kept = forward(x)
        seen.append(kept.data_ptr())
        return kept

    recording = record(function)
    assert seen[0] == seen[1]
    # What dies after the recording is closed is not lent again.
    later = [torch.empty(1, HIDDEN) for _ in range(4)]
    assert all(seen[2] != tensor.data_ptr() for tensor in later)
    assert recording.output.data_ptr() == seen[2]


def test_ops_of_torch_and_views_are_repeated(seeded: torch.Generator) -> None:
    table = torch.randn(10, 6, generator=seeded)
    ids = torch.tensor([3, 4])
    scale = torch.ones(6)

    def function() -> torch.Tensor:
        rows = torch.nn.functional.embedding(ids, table)
        left, right = rows.split([2, 4], dim=-1)
        left.add_(1.5)
        rows.view(-1)[0] = 7.0
        joined = torch.cat([right, left], dim=-1) * scale
        return torch.softmax(joined.t().contiguous(), 0)

    recording = record(function)
    assert recording.error == ""
    ids.copy_(torch.tensor([9, 0]))
    scale.fill_(0.5)
    expected = function()
    assert torch.equal(recording.replay([]), expected)
    assert not torch.equal(recording.output, torch.zeros_like(expected))


def test_strided_heads_are_normalized_where_they_lie(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    merged = torch.randn(3, 5, 16, generator=seeded).to(dtype)
    weight = torch.randn(16, generator=seeded).to(dtype)

    def function() -> torch.Tensor:
        out = torch.empty(3, 2, 16, dtype=dtype)
        torch.ops._C.rms_norm(out, merged[:, 1:3], weight, 1e-6)
        return out

    recording = record(function)
    merged.copy_(torch.randn(3, 5, 16, generator=seeded))
    expected = torch.empty(3, 2, 16, dtype=dtype)
    torch.ops._C.rms_norm(expected, merged[:, 1:3].contiguous(), weight, 1e-6)
    assert torch.equal(recording.replay([]), expected)


def attention_step(case: Case) -> list[torch.Tensor]:
    """query_start_loc, seq_lens, block_table and plan, as a step of the engine makes them."""
    lens = torch.tensor(case.shape.seq_lens).int()
    return [case.starts, lens, case.block_table, plan(case, Masking())]


def attend(case: Case, query: torch.Tensor, step: list[torch.Tensor]) -> torch.Tensor:
    starts, lens, block_table, metadata = step
    out = torch.empty_like(query)
    torch.ops._C.cpu_attention_with_kv_cache(
        query, *halves(case.pages), out, starts, lens, case.scale, True, None, -1, block_table,
        0.0, metadata, torch.tensor([0.5, -1.0, 2.0, 0.0]), None,
    )  # fmt: skip
    return out


def test_step_data_is_taken_from_the_replayed_step(
    dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    """A short context is recorded; a long one, split and merged, and other batches are replayed."""
    torch.set_num_threads(2)  # a context is split among threads
    case = make_case(Shape((1, 1), (1500, 300)), dtype, seeded)

    def step_of(query_lens: tuple[int, ...], seq_lens: tuple[int, ...]) -> list[torch.Tensor]:
        return attention_step(replace(case, shape=Shape(query_lens, seq_lens)))

    short = step_of((1, 1), (5, 20))
    assert merges(short[3]) == 0
    query = case.query.clone()
    recording = record(lambda: attend(case, query, short), *short)
    assert recording.error == ""
    for step in (step_of((1, 1), (1500, 9)), step_of((2,), (300,)), step_of((1, 1), (6, 21))):
        query.copy_(torch.randn(query.shape, generator=seeded))
        assert torch.equal(recording.replay(step), attend(case, query, step))
    assert merges(step_of((1, 1), (1500, 9))[3]) > 0


def test_slots_are_taken_from_the_replayed_step(dtype: torch.dtype) -> None:
    key = torch.arange(2 * 2 * 16).view(2, 2, 16).to(dtype)
    value = -key
    pages = torch.zeros(4, 2, 32, 16, dtype=dtype)
    slots = torch.tensor([0, 1])

    def write() -> torch.Tensor:
        torch.ops._C.cpu_attn_reshape_and_cache(key, value, *halves(pages), slots, "")
        return pages

    recording = record(write, slots)
    written = pages[0].clone()
    pages.zero_()
    recording.replay([torch.tensor([32, 33])])
    assert torch.equal(pages[2], written)
    assert not pages[0].any()


UNREPEATABLE = {
    "item": (lambda x, _: x * x.sum().item(), "item depends on the data"),
    "nonzero": (lambda x, _: x.nonzero().float(), "nonzero depends on the data"),
    "mask": (lambda x, _: x[x > 0], "depends on the data"),
    "random": (lambda x, _: x + torch.rand(3), "draws random numbers"),
    "step data": (lambda x, lens: x + lens, "reads data that is new in every step"),
    "a view of step data": (lambda x, lens: x + lens[:1], "reads data that is new in every step"),
}


@pytest.mark.parametrize("name", UNREPEATABLE)
def test_what_cannot_be_repeated_is_refused(name: str) -> None:
    function, reason = UNREPEATABLE[name]
    x = torch.tensor([1.0, -2.0, 3.0])
    lens = torch.tensor([3.0, 4.0, 5.0])
    recording = record(lambda: function(x, lens), lens)
    assert reason in recording.error
    with pytest.raises(RuntimeError, match="cannot be replayed"):
        recording.replay([lens])


def test_an_op_of_python_is_refused() -> None:
    @torch.library.custom_op("cpu_backend_tests::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    recording = record(lambda: double(torch.ones(2)))
    assert "cpu_backend_tests::double is not an op that this backend knows" in recording.error


def test_an_error_while_recording_leaves_torch_as_it_was() -> None:
    with pytest.raises(RuntimeError, match="size of tensor"):
        record(lambda: torch.ones(2) + torch.ones(3))
    recording = record(lambda: torch.ones(2) * 2)
    assert recording.error == ""
    assert torch.equal(recording.replay([]), torch.full((2,), 2.0))


def test_step_data_of_another_kind_is_refused() -> None:
    lens = torch.tensor([1, 2]).int()
    recording = record(lambda: torch.ones(1), lens)
    with pytest.raises(RuntimeError, match="laid out differently"):
        recording.replay([lens.long()])
    with pytest.raises(RuntimeError, match="has 0 tensors"):
        recording.replay([])
