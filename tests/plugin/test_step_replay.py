"""Which steps are recorded, when a recording is believed, and what the engine gets until then."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cpu_backend import ops, state_ops
from cpu_backend.attention.backend import StepMetadata
from cpu_backend.attention.states import StateMetadata
from cpu_backend.worker.model_memory import model_memory
from cpu_backend.worker.step_replay import MAX_TOKENS, State, StepReplay

ops.load()


class Steps:
    """Steps of some tokens through a function, with its calls counted."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], tokens: int = 4) -> None:
        self.ids = torch.zeros(tokens, dtype=torch.int64)
        self.positions = torch.zeros(tokens, dtype=torch.int64)
        self.weight = torch.arange(32.0)
        self.calls = 0
        self.replay = StepReplay(lambda: [self.weight])
        self._function = function
        self._step = 0

    def forward(self) -> torch.Tensor:
        self.calls += 1
        return self._function(self.weight[self.ids] + self.positions)

    def __call__(self, *, same: bool = False) -> torch.Tensor:
        """The next step, with the inputs of the one before or with others; a copy."""
        if not same:
            self._step += 1
            self.ids.copy_((torch.arange(len(self.ids)) * 5 + self._step) % 32)
            self.positions.fill_(self._step)
        tokens = len(self.ids)
        int32 = torch.zeros(tokens + 1, dtype=torch.int32)
        step = StepMetadata(
            tokens, int32, int32[:tokens].clone(), int32[None].clone(), self.ids.clone(),
            torch.zeros(64, dtype=torch.int8), causal=True, dynamic_causal=None, encoder_cache=None,
        )  # fmt: skip
        return self.replay.run(self.forward, (self.ids, self.positions), [step]).clone()

    def expected(self) -> torch.Tensor:
        return self._function(self.weight[self.ids] + self.positions)


def test_what_the_host_has_embedded_is_an_input_too() -> None:
    """As models with images have it: tokens in the last dimension of a transposed view."""
    positions, embedded = torch.zeros(4, dtype=torch.int64), torch.zeros(4, 6)
    replay = StepReplay(list)
    calls = 0

    def forward() -> torch.Tensor:
        nonlocal calls
        calls += 1
        return embedded.clone().mul_(2) + positions[:, None]

    int32 = torch.zeros(5, dtype=torch.int32)
    step = StepMetadata(
        4, int32, int32[:4].clone(), int32[None].clone(), positions.clone(),
        torch.zeros(64, dtype=torch.int8), causal=True, dynamic_causal=None, encoder_cache=None,
    )  # fmt: skip
    for number, expected_calls in ((1, 1), (2, 2), (3, 2), (4, 2)):
        embedded.copy_(torch.arange(24.0).view(4, 6) * number)
        result = replay.run(forward, (positions, embedded.T), [step])
        assert torch.equal(result, embedded * 2)
        assert calls == expected_calls


def test_a_replay_that_is_not_believed_leaves_the_models_own_values_in_the_cache() -> None:
    cache = torch.zeros(4)

    def function(x: torch.Tensor) -> torch.Tensor:
        if steps.calls > 1:  # no op that may be recorded
            cache.copy_(x)
        return x * 2

    def wrong(_: list[torch.Tensor]) -> torch.Tensor:
        return cache.fill_(torch.nan).clone()

    steps = Steps(function)
    steps()
    [recorded] = steps.replay._recorded.values()
    recorded.recording.replay = wrong  # type: ignore[method-assign,assignment]
    steps()
    assert steps.replay.given_up
    assert torch.equal(cache, steps.weight[steps.ids] + steps.positions)


def test_a_step_is_recorded_compared_and_then_replayed() -> None:
    steps = Steps(lambda x: (x * 2).exp().softmax(0))
    for calls in (1, 2, 2, 2):
        assert torch.equal(steps(), steps.expected())
        assert steps.calls == calls
    assert steps.replay.given_up == ""


def test_steps_that_run_other_ops_are_other_recordings() -> None:
    factor = [2]
    steps = Steps(lambda x: x * factor[0])
    run = steps.replay.run

    def with_branch(*args: Any) -> torch.Tensor:
        return run(*args, branch=factor[0])

    steps.replay.run = with_branch  # type: ignore[method-assign,assignment]
    for factor[0], calls in ((2, 1), (3, 2), (2, 3), (2, 3), (3, 4), (3, 4), (2, 4)):
        assert torch.equal(steps(), steps.expected())
        assert steps.calls == calls
    assert steps.replay.given_up == ""


def test_equal_inputs_prove_nothing() -> None:
    steps = Steps(lambda x: x * 2)
    steps()
    for calls in (2, 3):
        steps(same=True)
        assert steps.calls == calls
    steps()  # the comparison
    steps()
    assert steps.calls == 4


def test_a_result_with_nan_is_as_good_as_any() -> None:
    steps = Steps(lambda x: (x - x) / (x - x) + x)
    for _ in range(3):
        assert steps().isnan().all()
    assert steps.calls == 2


def test_a_counter_in_python_is_found_before_a_result_is_used() -> None:
    count = 0

    def function(x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return x * count

    steps = Steps(function)
    for step in range(1, 6):
        assert torch.equal(steps(), (steps.weight[steps.ids] + steps.positions) * step)
    assert steps.replay.given_up == "a replayed step differs from the model's own"


def test_a_refused_recording_is_given_up_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps(lambda x: x * float(x.sum()))
    for _ in range(3):
        assert torch.equal(steps(), steps.expected())
    assert "aten::item depends on the data it reads" in steps.replay.given_up
    assert caplog.text.count("steps are not replayed with this model") == 1


def test_an_error_in_mid_recording_leaves_nothing_behind() -> None:
    fail = True

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if fail:
            raise RuntimeError("the model failed")
        return y + 1

    steps = Steps(function)
    with pytest.raises(RuntimeError, match="the model failed"):
        steps()
    fail = False
    for _ in range(4):
        assert torch.equal(steps(), steps.expected())
    assert steps.replay.given_up == ""


def test_large_steps_are_not_recorded() -> None:
    steps = Steps(lambda x: x * 2, tokens=MAX_TOKENS + 1)
    for calls in (1, 2, 3):
        steps()
        assert steps.calls == calls


def test_every_nth_replay_is_compared_on_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CPU_BACKEND_CHECK_REPLAY", "3")
    factor = 2.0
    steps = Steps(lambda x: x * factor)
    for calls in (1, 2, 2, 2, 3, 3):  # record, compare, replay, replay, compare, replay
        steps()
        assert steps.calls == calls
    factor = 3.0  # what a recording cannot see
    assert torch.equal(steps(), steps.expected() * 2 / 3)
    assert torch.equal(steps(), steps.expected())
    assert steps.replay.given_up
    assert "a replayed step was wrong" in caplog.text


def test_model_memory_is_found_where_modules_keep_it() -> None:
    class Implementation:
        def __init__(self) -> None:
            self.slopes = torch.ones(2)

    Implementation.__module__ = "vllm.made_up"

    class Layer(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.register_buffer("table", torch.ones(5))
            self.impl = Implementation()
            self.caches = [torch.ones(3), {"other": torch.ones(4)}]
            self.circle = [self.caches]
            self.caches.append(self.circle)

    layer = torch.nn.Sequential(Layer(), Layer())
    found = {tensor.untyped_storage().data_ptr() for tensor in model_memory(layer)}
    first = layer[0]
    wanted = [first.weight, first.bias, first.table, first.impl.slopes, first.caches[0]]
    wanted.append(first.caches[1]["other"])
    assert {tensor.untyped_storage().data_ptr() for tensor in wanted} < found
    assert len(found) == 2 * len(wanted)


def test_model_memory_has_the_constants_of_the_files_that_define_the_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = types.ModuleType("vllm.made_up")
    file.EPSILON = torch.tensor(1e-5)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, file.__name__, file)

    class Layer(torch.nn.Identity):
        __module__ = file.__name__

    (found,) = model_memory(torch.nn.Sequential(Layer(), Layer()))
    assert found is file.EPSILON


def test_a_state_is_changed_once_by_a_step_however_often_it_runs() -> None:
    """The recorded step, the compared one, and two replayed ones."""
    positions, embedded = torch.zeros(3, dtype=torch.int64), torch.zeros(3, 4)
    taps, states = torch.arange(12.0).view(4, 1, 3), torch.zeros(3, 4, 2)
    replay = StepReplay(lambda: [taps, states])
    calls = 0

    def convolved(kept: torch.Tensor, step: StateMetadata) -> torch.Tensor:
        return state_ops.causal_conv(embedded.clone(), taps, None, kept, step.sequences, silu=False)

    def forward() -> torch.Tensor:
        nonlocal calls
        calls += 1
        return convolved(states, step)

    for number, expected_calls in ((1, 1), (2, 2), (3, 2), (4, 2)):
        embedded.copy_(torch.arange(12.0).view(3, 4) * number)
        positions.fill_(number)
        starts = torch.tensor([0, 1, 3], dtype=torch.int32)
        slots = torch.tensor([2, number % 2], dtype=torch.int32)
        resumes = torch.tensor([number > 1, number > 2])
        step = StateMetadata(3, state_ops.StepSequences(starts, slots, resumes))
        kept = states.clone()
        expected = convolved(kept, step).clone()
        result = replay.run(forward, (positions, embedded.T), [step], [State(states, slots)])
        assert replay.given_up == ""
        assert torch.equal(result, expected)
        assert torch.equal(states, kept)
        assert calls == expected_calls


def test_a_step_that_changes_a_state_of_nobodys_is_not_recorded() -> None:
    embedded, taps = torch.ones(3, 4), torch.ones(4, 1, 3)
    positions, states = torch.zeros(3, dtype=torch.int64), torch.zeros(3, 4, 2)
    replay = StepReplay(lambda: [taps, states])
    starts = torch.tensor([0, 3], dtype=torch.int32)
    sequences = state_ops.StepSequences(starts, starts[:1].clone(), torch.tensor([False]))
    step = StateMetadata(3, sequences)

    def forward() -> torch.Tensor:
        return state_ops.causal_conv(embedded.clone(), taps, None, states, sequences, silu=False)

    replay.run(forward, (positions, embedded.T), [step])
    assert "changes memory that outlives the step" in replay.given_up
