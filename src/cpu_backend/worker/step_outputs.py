"""What a model's forward gives, as the one tensor that a recorded step has, and back."""

from __future__ import annotations

import math
from typing import Any

import torch
from vllm.sequence import IntermediateTensors


class Outputs:
    """Of a model that gives its last layer's states; those and others that EAGLE-3 reads of layers
    before, in a list; or, as a stage that is not the last, tensors for the next one by name.

    Each has tokens first.  What a model gives is the same in every step but for their number.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()  # of what a stage sends
        self._shapes: list[torch.Size] = []  # of a token in each of several tensors

    def joined(self, output: Any) -> Any:
        """[tokens, columns] of all that ``output`` has; what is neither of these stays as it is."""
        match output:
            case IntermediateTensors():
                self._names, parts = tuple(output.tensors), list(output.tensors.values())
            case (last, list() as others):
                parts = [last, *others]
            case _:
                return output
        self._shapes = [part.shape[1:] for part in parts]
        return torch.cat([part.flatten(1) for part in parts], dim=-1)

    def parted(self, output: torch.Tensor) -> Any:
        """What the model gave for what :meth:`joined` made of it."""
        if not self._shapes:
            return output
        columns = [math.prod(shape) for shape in self._shapes]
        parts = [
            part.reshape(len(output), *shape).contiguous()
            for part, shape in zip(output.split(columns, dim=-1), self._shapes, strict=True)
        ]
        if self._names:
            return IntermediateTensors(dict(zip(self._names, parts, strict=True)))
        last, *others = parts
        return last, others
