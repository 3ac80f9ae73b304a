"""Decode steps without Python: the forward pass of a batch size is recorded once, then replayed.

The first forward of ``n`` tokens is recorded while it runs (``csrc/torch_ops/step_recording.h``).
The second runs both ways, and the replay is only trusted if every bit of its result equals the
model's own.  From the third on, the recording stands in for the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from vllm.logger import init_logger

from cpu_backend import ops
from cpu_backend.attention.backend import StepMetadata

logger = init_logger("vllm.cpu_backend")

# Beyond this many tokens a forward computes so long that its Python hides behind it.
MAX_TOKENS = 64


@dataclass
class _Recorded:
    recording: ops.StepRecording
    inputs: tuple[int, ...]
    trusted: bool = False


class StepReplay:
    """The recordings of one model, by number of tokens."""

    def __init__(self, agree: Callable[[bool], bool] = bool) -> None:
        """``agree``: whether all ranks of a tensor-parallel group say yes.

        Recording and replaying run the same collectives as the model, but comparing the two runs
        them once more, so ranks must not part ways.
        """
        self._agree = agree
        self._recorded: dict[tuple[int, tuple[bool, ...]], _Recorded] = {}
        self._enabled = True

    def run(
        self,
        forward: Callable[[], torch.Tensor],
        inputs: tuple[torch.Tensor, ...],
        metadata: Iterable[StepMetadata],
    ) -> torch.Tensor:
        """``forward()``, or what it would return.

        inputs: the tensors that the model reads and the runner keeps in place from step to step;
        metadata: one per group of attention layers.  The result is valid until the next step.
        """
        tokens = inputs[0].shape[0]
        groups = list(metadata)
        if not self._enabled or tokens > MAX_TOKENS or not all(map(_is_repeatable, groups)):
            return forward()
        key = (tokens, tuple(group.causal for group in groups))
        step_data = [tensor for group in groups for tensor in _tensors(group)]
        addresses = tuple(tensor.data_ptr() for tensor in inputs)
        recorded = self._recorded.get(key)
        if recorded is None or recorded.inputs != addresses:
            return self._record(key, forward, addresses, step_data)
        if recorded.trusted:
            return recorded.recording.replay(step_data)
        result = forward()
        recorded.trusted = self._agree(torch.equal(recorded.recording.replay(step_data), result))
        if not recorded.trusted:
            self._give_up("a replayed step differs from the model's own")
        return result

    def _record(
        self,
        key: tuple[int, tuple[bool, ...]],
        forward: Callable[[], torch.Tensor],
        addresses: tuple[int, ...],
        step_data: list[torch.Tensor],
    ) -> torch.Tensor:
        recording = ops.StepRecording(step_data)
        with recording:
            result = forward()
            recording.output = result
        if self._agree(not recording.error):
            self._recorded[key] = _Recorded(recording, addresses)
        else:
            self._give_up(recording.error or "another rank cannot replay it")
        return result

    def _give_up(self, reason: str) -> None:
        """Stay with the model's own forward: slower, never wrong."""
        self._enabled = False
        self._recorded.clear()
        logger.info("cpu_backend: steps are not replayed with this model: %s.", reason)


def _is_repeatable(group: StepMetadata) -> bool:
    return group.dynamic_causal is None and group.encoder_cache is None


def _tensors(group: StepMetadata) -> tuple[torch.Tensor, ...]:
    return (
        group.query_start_loc,
        group.seq_lens,
        group.block_table,
        group.slot_mapping,
        group.plan,
    )
