"""What a provider of linear layers and experts is.

Nothing here needs the host or the native library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import metadata
from typing import NamedTuple

import torch
from torch import Tensor

from cpu_backend.ops import Activations, Codes, GroupScales
from cpu_backend.products import Experts, Linear


class Unsupported(ValueError):  # noqa: N818 (an answer, which becomes a sentence)
    """What a provider cannot do, as the end of a sentence: "does not ..."."""


class Matrix(NamedTuple):
    """A weight of integer codes, as a checkpoint has it; ``parts`` as in products.Linear, which not
    every provider reads."""

    codes: Codes
    groups: GroupScales
    in_features: int
    activations: Activations
    parts: int = 1


@dataclass(frozen=True)
class Needs:
    """The package that a provider is in, and for which release of torch it is made.

    torch: "2.8", or "" where the package's own version begins with torch's.
    """

    package: str
    torch: str = ""

    def missing(self) -> str:
        """What keeps it from being imported, as a sentence, or nothing.  Imports nothing itself:
        some packages end a process whose torch they do not know."""
        try:
            version = metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return f"{self.package} is not installed: {self._way_out()}"
        wanted, running = self.torch or minor(version), minor(torch.__version__)
        if wanted == running:
            return ""
        return (
            f"{self.package} {version} is made for torch {wanted} and this is torch "
            f"{torch.__version__.partition('+')[0]}: {self._way_out()}"
        )

    def _way_out(self) -> str:
        running = minor(torch.__version__)
        if not self.torch:
            return f"install it with `pip install '{self.package}=={running}.*'`, or choose native."
        if self.torch == running:
            return f"install it with `pip install {self.package}`, or choose native."
        return f"it exists for torch {self.torch} only, so choose native, torch or zentorch."


def minor(version: str) -> str:
    """The first two numbers of a version."""
    return ".".join(version.partition("+")[0].split(".")[:2])


class Provider(ABC):
    """A maker of linear layers and experts.

    Each raises Unsupported for what this provider does not have.
    """

    name: str
    batch_invariant = False  # a row's bits do not depend on the rows beside it
    replayable = False  # its ops may be part of a recorded step

    @abstractmethod
    def linear(self, weight: Tensor, parts: int = 1) -> Linear:
        """weight [out_features, in_features] of fp32, bf16 or fp16, which may be freed."""

    @abstractmethod
    def quantized(self, matrix: Matrix, dtype: torch.dtype) -> Linear:
        """A weight of integer or float8 codes; ``dtype``: of the activations."""

    @abstractmethod
    def experts(self, gate_up: Tensor, down: Tensor, activation: str) -> Experts:
        """gate_up [experts, 2 * intermediate, hidden], the gates first, or without a gate [experts,
        intermediate, hidden]; down [experts, hidden, intermediate]; of fp32, bf16 or fp16."""


def parts_of(gate_up: Tensor, down: Tensor) -> int:
    """Of the experts' first projections: 2, or without a gate 1."""
    return gate_up.shape[1] // down.shape[2]


def with_gate(gate_up: Tensor, down: Tensor) -> None:
    """Raises Unsupported for experts without a gate."""
    if parts_of(gate_up, down) == 1:
        raise Unsupported("does not have experts without a gate")
