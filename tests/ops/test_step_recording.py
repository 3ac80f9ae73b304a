"""A recorded sequence of ops, replayed on other data, against the same ops run again."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from cpu_backend import ops
from tests.ops.attention_case import Case, Shape, halves, make_case, merges, plan
from tests.reference.attention import Masking

HIDDEN, INTERMEDIATE = 48, 80


def record(
    function: Callable[[], torch.Tensor],
    *step_data: torch.Tensor,
    memory: Iterable[torch.Tensor] = (),
) -> ops.StepRecording:
    """``memory``: what ``function`` reads that was there before."""
    recording = ops.StepRecording(list(step_data), list(memory))
    with recording:
        recording.output = function()
    return recording


def replay_over_garbage(
    recording: ops.StepRecording, step_data: Iterable[torch.Tensor] = ()
) -> torch.Tensor:
    assert recording.error == ""
    recording.fill_with_garbage()
    return recording.replay(list(step_data))


def block(
    dtype: torch.dtype, seeded: torch.Generator
) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    """Norm, gate-up, activation and down with a residual, as a decoder layer has them, and the
    weight that is a tensor of torch."""

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

    return forward, weight


def test_padding_in_a_large_stack_is_no_pointer(seeded: torch.Generator) -> None:
    """A stack of 8 GiB crosses a multiple of 4 GiB wherever it lies, so that half of an old address
    with a small number beside it is one within."""
    forward, weight = block(torch.float32, seeded)
    x = torch.randn(2, HIDDEN, generator=seeded)
    errors: list[str] = []
    before = threading.stack_size(8 << 30)
    try:
        thread = threading.Thread(
            target=lambda: errors.append(record(lambda: forward(x), memory=[x, weight]).error)
        )
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert errors == [""]


@pytest.mark.parametrize("count", [1, 2, 5, 64])
@pytest.mark.parametrize("num_threads", [1, 2, 3, 17])
def test_replay_equals_running_again(
    count: int, num_threads: int, dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    torch.set_num_threads(num_threads)
    forward, weight = block(dtype, seeded)
    x = torch.randn(count, HIDDEN, generator=seeded).to(dtype)
    recording = record(lambda: forward(x), memory=[x, weight])
    assert recording.error == ""
    first = recording.output.clone()
    assert torch.equal(first, forward(x))
    for _ in range(3):
        x.copy_(torch.randn(count, HIDDEN, generator=seeded))
        assert torch.equal(replay_over_garbage(recording), forward(x))
    assert not torch.equal(first, forward(x))


def test_dead_tensors_lend_their_memory_within_a_recording(seeded: torch.Generator) -> None:
    forward, weight = block(torch.float32, seeded)
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

    recording = record(function, memory=[x, weight])
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

    recording = record(function, memory=[table, ids, scale])
    ids.copy_(torch.tensor([9, 0]))
    scale.fill_(0.5)
    expected = function()
    assert torch.equal(replay_over_garbage(recording), expected)
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

    recording = record(function, memory=[merged, weight])
    merged.copy_(torch.randn(3, 5, 16, generator=seeded))
    expected = torch.empty(3, 2, 16, dtype=dtype)
    torch.ops._C.rms_norm(expected, merged[:, 1:3].contiguous(), weight, 1e-6)
    assert torch.equal(replay_over_garbage(recording), expected)


def attention_step(case: Case) -> list[torch.Tensor]:
    """query_start_loc, seq_lens, block_table and plan, as a step of the engine makes them."""
    lens = torch.tensor(case.shape.seq_lens).int()
    return [case.starts, lens, case.block_table, plan(case, Masking())]


SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])


def attend(case: Case, query: torch.Tensor, step: list[torch.Tensor]) -> torch.Tensor:
    starts, lens, block_table, metadata = step
    out = torch.empty_like(query)
    torch.ops._C.cpu_attention_with_kv_cache(
        query, *halves(case.pages), out, starts, lens, case.scale, True, None, -1, block_table,
        0.0, metadata, SINKS, None,
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
    recording = record(
        lambda: attend(case, query, short), *short, memory=[case.pages, query, SINKS]
    )
    for step in (step_of((1, 1), (1500, 9)), step_of((2,), (300,)), step_of((1, 1), (6, 21))):
        query.copy_(torch.randn(query.shape, generator=seeded))
        assert torch.equal(replay_over_garbage(recording, step), attend(case, query, step))
    assert merges(step_of((1, 1), (1500, 9))[3]) > 0


def test_slots_are_taken_from_the_replayed_step(dtype: torch.dtype) -> None:
    key = torch.arange(2 * 2 * 16).view(2, 2, 16).to(dtype)
    value = -key
    pages = torch.zeros(4, 2, 32, 16, dtype=dtype)
    slots = torch.tensor([0, 1])

    def write() -> torch.Tensor:
        torch.ops._C.cpu_attn_reshape_and_cache(key, value, *halves(pages), slots, "")
        return pages

    recording = record(write, slots, memory=[key, value, pages])
    assert recording.error == ""
    written = pages[0].clone()
    pages.zero_()
    recording.replay([torch.tensor([32, 33])])
    assert torch.equal(pages[2], written)
    assert not pages[0].any()


KEPT: list[torch.Tensor] = []
ELSEWHERE = torch.ones(3)


def keep(x: torch.Tensor) -> torch.Tensor:
    KEPT.append(x * 3)
    return x + KEPT[-1]


UNREPEATABLE = {
    "item": (lambda x, _: x * x.sum().item(), "item depends on the data"),
    "float": (lambda x, _: x * float(x[0]), "item depends on the data"),
    "condition": (lambda x, _: x if x.sum() > 0 else -x, "is_nonzero"),
    "list": (lambda x, _: x * x.tolist()[0], "Tensor.tolist reads a value back"),
    "numpy": (lambda x, _: x * x.numpy()[0], "Tensor.numpy reads a value back"),
    "nonzero": (lambda x, _: x.nonzero().float(), "nonzero depends on the data"),
    "mask": (lambda x, _: x[x > 0], "depends on the data"),
    "random": (lambda x, _: x + torch.rand(3), "draws random numbers"),
    "dropout": (lambda x, _: torch.nn.functional.dropout(x + 1), "draws random numbers"),
    "step data": (lambda x, lens: x + lens, "reads data that is new in every step"),
    "a view of step data": (lambda x, lens: x + lens[:1], "reads data that is new in every step"),
    "memory of nobody": (lambda x, _: x + ELSEWHERE, "neither the model's nor made in the step"),
    "a change of the model": (lambda x, _: x.mul_(2), "changes memory that outlives the step"),
    "a change of a view of it": (lambda x, _: x[1:].add_(1), "changes memory that outlives"),
    "a tensor kept": (lambda x, _: keep(x), "kept beyond it"),
    "an unknown op": (lambda x, _: torch.linalg.inv(x.diag()), "not an op that this backend knows"),
}


@pytest.mark.parametrize("name", UNREPEATABLE)
def test_what_cannot_be_repeated_is_refused(name: str) -> None:
    function, reason = UNREPEATABLE[name]
    x = torch.tensor([1.0, -2.0, 3.0])
    lens = torch.tensor([3.0, 4.0, 5.0])
    recording = record(lambda: function(x, lens), lens, memory=[x])
    assert reason in recording.error
    with pytest.raises(RuntimeError, match="cannot be replayed"):
        recording.replay([lens])


def test_constants_made_on_the_way_stay_what_they_were(seeded: torch.Generator) -> None:
    """What no op has written lies where a dead tensor lay, which a replay writes again."""
    x = torch.randn(4, 16, generator=seeded)
    zero_dim = torch.tensor(0.25)

    def function() -> torch.Tensor:
        y = x
        for _ in range(3):
            dead = y + x
            y = dead * 1.5  # a tensor of Python's number, in the memory of a dead one
            del dead
            y = y - torch.tensor([[0.5] * 16]) * zero_dim
            y = y + torch.arange(16) * 2
            y.view(2, 32)[:, 3:9].mul_(0.5)  # in place on a view
            y[1] = 7.0
            alone = torch.empty(2, 3)
            alone[0] = 1.0
            alone[1] = x[0, :3]
            y = torch.cat([y, y], 1)[:, :16] / alone.sum()
        return y

    recording = record(function, memory=[x, zero_dim])
    for _ in range(3):
        x.copy_(torch.randn(x.shape, generator=seeded))
        zero_dim.fill_(float(x[0, 0]))
        assert torch.equal(replay_over_garbage(recording), function())


def test_an_op_that_takes_raw_memory_can_be_recorded(seeded: torch.Generator) -> None:
    """torch's GELU by oneDNN asks the allocator without a tensor."""
    x = torch.randn(64, 512, generator=seeded)
    recording = record(lambda: torch.nn.functional.gelu(x) + 1, memory=[x])
    x.copy_(torch.randn(x.shape, generator=seeded))
    assert torch.equal(replay_over_garbage(recording), torch.nn.functional.gelu(x) + 1)


def test_memory_of_a_recording_may_be_freed_after_it() -> None:
    recording = record(lambda: torch.ones(3) + 1)
    kept = recording.output
    del recording
    gc.collect()
    assert torch.equal(kept, torch.full((3,), 2.0))


def test_recordings_alive_at_once_have_their_own_memory(seeded: torch.Generator) -> None:
    x = torch.randn(5, 7, generator=seeded)
    functions = [lambda: (x * 2).exp() + 1, lambda: (x - 3) * x.sum()]
    recordings = [record(function, memory=[x]) for function in functions]
    for _ in range(2):
        x.copy_(torch.randn(x.shape, generator=seeded))
        results = [replay_over_garbage(recording) for recording in recordings]
        for result, function in zip(results, functions, strict=True):
            assert torch.equal(result, function())
    with pytest.raises(RuntimeError, match="already open"), recordings[0], recordings[1]:
        pass


def test_step_data_must_be_named_itself(dtype: torch.dtype, seeded: torch.Generator) -> None:
    """A view of a named tensor would go on looking at the recorded step's data."""
    case = make_case(Shape((1,), (20,)), dtype, seeded)
    step = attention_step(case)
    memory = [case.pages, case.query, SINKS]
    views = [tensor.view_as(tensor) for tensor in step]
    recording = record(lambda: attend(case, case.query, views), *step, memory=memory)
    assert "from a tensor that was not named as new in every step" in recording.error


def test_an_op_of_python_is_refused(seeded: torch.Generator) -> None:
    """By its own name, also where it runs loops of this project."""
    linear = ops.PackedLinear(torch.randn(4, 2, generator=seeded))

    @torch.library.custom_op("cpu_backend_tests::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return linear(x) * 2

    recording = record(lambda: double(torch.ones(1, 2)))
    assert "cpu_backend_tests::double is not an op that this backend knows" in recording.error


def test_what_the_hosts_op_around_experts_calls_is_recorded(seeded: torch.Generator) -> None:
    from vllm.forward_context import override_forward_context
    from vllm.model_executor.models.transformers import moe

    linear = ops.PackedLinear(torch.randn(HIDDEN, HIDDEN, generator=seeded))
    state = moe.TransformersMoEState()
    layer = SimpleNamespace(_moe_state=state)
    layer._forward_super = lambda x, weights: linear(x) * weights * state.topk_ids
    context = SimpleNamespace(no_compile_layers={"layer": layer})
    x = torch.randn(3, HIDDEN, generator=seeded)

    def function() -> torch.Tensor:
        ids, weights = (x[:, :1] > 0).int(), x[:, :1] + 1
        try:
            result: torch.Tensor = torch.ops.vllm.transformers_moe_forward(x, ids, weights, "layer")
        finally:
            state.topk_ids = None
        return result

    with override_forward_context(context):
        recording = record(function, memory=[x])
        x.copy_(torch.randn(x.shape, generator=seeded))
        assert torch.equal(replay_over_garbage(recording), function())


def test_an_error_while_recording_leaves_torch_as_it_was() -> None:
    with pytest.raises(RuntimeError, match="size of tensor"):
        record(lambda: torch.ones(2) + torch.ones(3))
    recording = record(lambda: torch.ones(2) * 2)
    assert torch.equal(replay_over_garbage(recording), torch.full((2,), 2.0))


def test_step_data_of_another_kind_is_refused() -> None:
    lens = torch.tensor([1, 2]).int()
    recording = record(lambda: torch.ones(1), lens)
    with pytest.raises(RuntimeError, match="laid out differently"):
        recording.replay([lens.long()])
    with pytest.raises(RuntimeError, match="has 0 tensors"):
        recording.replay([])
