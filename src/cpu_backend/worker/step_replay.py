"""Decode steps without Python: the forward pass of a batch size is recorded once, then replayed.

The first forward of ``n`` tokens is recorded while it runs (``csrc/recording/step_recording.h``).
A later one with other inputs runs both ways, the replay in memory full of garbage, and the
recording is trusted only if every bit of its result equals the model's own.  From then on it stands
in for the model.  Until then, and for good if anything is amiss, the model's own result counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.logger import init_logger

from cpu_backend import envs, ops
from cpu_backend.attention.backend import StepMetadata
from cpu_backend.attention.states import StateMetadata

logger = init_logger("vllm.cpu_backend")

# Beyond this many tokens a forward computes so long that its Python hides behind it.
MAX_TOKENS = 64


@dataclass(frozen=True)
class State:
    """A layer's recurrent states, of which the step's requests have those in ``slots``."""

    states: torch.Tensor
    slots: torch.Tensor


@dataclass
class _Recorded:
    recording: ops.StepRecording
    addresses: tuple[int, ...]
    inputs: tuple[torch.Tensor, ...]  # copies of what it was recorded with
    trusted: bool = False


class StepReplay:
    """The recordings of one model, by number of tokens."""

    def __init__(
        self,
        model_memory: Callable[[], list[torch.Tensor]],
        agree: Callable[[bool], bool] = bool,
        tell: Callable[[str], None] = logger.warning,
    ) -> None:
        """model_memory: the tensors that outlive a step, weights and caches among them; agree:
        whether all ranks of a tensor-parallel group say yes; tell: where to say why steps are not
        replayed.

        Recording and replaying run the same collectives as the model, but comparing the two runs
        them once more, so ranks must not part ways.
        """
        self._model_memory = model_memory
        self._agree = agree
        self._tell = tell
        self._recorded: dict[Hashable, _Recorded] = {}
        self._check_every = envs.check_replay()
        self.replays = 0  # steps in which a trusted recording was run
        self.given_up = ""  # why no step of this model is replayed

    def run(
        self,
        forward: Callable[[], torch.Tensor],
        inputs: tuple[torch.Tensor, ...],
        metadata: Iterable[StepMetadata | StateMetadata],
        states: Sequence[State] = (),
        branch: Hashable = None,
    ) -> torch.Tensor:
        """``forward()``, or what it would return.

        inputs: the tensors that the model reads and the runner keeps in place from step to step,
        tokens in their last dimension; metadata: one per group of attention layers; states: all
        that the step changes and reads beforehand; branch: what else decides which ops the model
        runs.  The result is valid until the next step.
        """
        tokens = inputs[0].shape[-1]
        groups = list(metadata)
        if (
            self.given_up
            or tokens > MAX_TOKENS
            or not all(group.is_repeatable(tokens) for group in groups)
        ):
            return forward()
        key = (tokens, tuple(group.causal for group in groups), branch)
        step_data = [tensor for group in groups for tensor in group.step_data()]
        addresses = tuple(tensor.data_ptr() for tensor in inputs)
        recorded = self._recorded.get(key)
        if recorded is None or recorded.addresses != addresses:
            return self._record(key, forward, inputs, step_data, states)
        if recorded.trusted:
            self.replays += 1
            if not self._check_every or self.replays % self._check_every:
                return recorded.recording.replay(step_data)
            return self._compare(recorded, forward, step_data, states)
        if not _mostly_differ(inputs, recorded.inputs):
            return forward()  # would prove little
        recorded.recording.fill_with_garbage()
        return self._compare(recorded, forward, step_data, states)

    def _record(
        self,
        key: Hashable,
        forward: Callable[[], torch.Tensor],
        inputs: tuple[torch.Tensor, ...],
        step_data: list[torch.Tensor],
        states: Sequence[State],
    ) -> torch.Tensor:
        recording = ops.StepRecording(
            step_data, [*self._model_memory(), *inputs], [state.states for state in states]
        )
        with recording:
            result = forward()
            if isinstance(result, torch.Tensor):
                recording.output = result
            else:
                recording.refuse("the model gives something else than one tensor")
        if self._agree(not recording.error):
            addresses = tuple(tensor.data_ptr() for tensor in inputs)
            copies = tuple(tensor.clone() for tensor in inputs)
            self._recorded[key] = _Recorded(recording, addresses, copies)
        else:
            self._give_up(recording.error or "another rank cannot replay it")
        return result

    def _compare(
        self,
        recorded: _Recorded,
        forward: Callable[[], torch.Tensor],
        step_data: list[torch.Tensor],
        states: Sequence[State],
    ) -> torch.Tensor:
        """The model's own result, after the replay's has been held against it.

        The replay comes first: should it be wrong, the model then writes the right keys and values
        over its own.  Recurrent states would be changed twice: the model's run begins with those
        that the replay began with.
        """
        begun_with = [state.states[state.slots] for state in states]
        replayed = recorded.recording.replay(step_data).clone()
        for state, before in zip(states, begun_with, strict=True):
            state.states[state.slots] = before
        result = forward()
        equal = _same_bits(replayed, result)
        if self._agree(equal):
            recorded.trusted = True
        elif recorded.trusted:
            logger.error("cpu_backend: a replayed step was wrong; the ones before it may be, too.")
            self._give_up("a replayed step differs from the model's own")
        else:
            self._give_up("a replayed step differs from the model's own")
        return result

    def _give_up(self, reason: str) -> None:
        """Stay with the model's own forward: slower, never wrong."""
        self.given_up = reason
        self._recorded.clear()
        self._tell(f"steps are not replayed with this model: {reason}")


def distinct(metadata: Any) -> list[StepMetadata | StateMetadata]:
    """The metadata objects of a step, which layers share; none where any layer has another kind."""
    if not isinstance(metadata, dict):
        return []
    groups = list({id(group): group for group in metadata.values()}.values())
    known = all(isinstance(group, StepMetadata | StateMetadata) for group in groups)
    return groups if known else []


def _mostly_differ(inputs: tuple[torch.Tensor, ...], recorded: tuple[torch.Tensor, ...]) -> bool:
    """Whether at least half of the tokens are others, or elsewhere, than those recorded."""
    tokens = inputs[0].shape[-1]
    differ = torch.zeros(tokens, dtype=torch.bool)
    for now, then in zip(inputs, recorded, strict=True):
        differ |= (now != then).reshape(-1, tokens).any(0)
    return 2 * int(differ.sum()) >= tokens


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Unlike ``torch.equal``, also where both have the same NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
