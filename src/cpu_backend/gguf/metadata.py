"""The fields of a GGUF file that are about its model; each is read by somebody, or refuses it."""

from __future__ import annotations

import math

import numpy as np

from cpu_backend.gguf.reader import GgufFile

LARGEST = 1 << 31  # of any size in the metadata


class Metadata:
    """Fields below the name of the file's architecture.  Raises ConfigError for what is missing or
    of another kind.

    harmless: fields that change nothing, or say again what the tensors do.
    """

    harmless: frozenset[str] = frozenset()

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.name = file.get("general.architecture", str)
        self._read: set[str] = set()

    def field(self, key: str) -> str:
        """The whole name of a field of this architecture, which is read from now on."""
        self._read.add(key)
        return f"{self.name}.{key}"

    def unread(self) -> list[str]:
        """The fields of this architecture that nobody has asked for: they may mean something."""
        prefix = f"{self.name}."
        keys = {key.removeprefix(prefix) for key in self.file.metadata if key.startswith(prefix)}
        return sorted(prefix + key for key in keys - self._read - self.harmless)

    def has(self, key: str) -> bool:
        """Whether the metadata has the field ``key`` of this architecture."""
        return self.field(key) in self.file.metadata

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number from ``least`` up."""
        value = self.file.get(self.field(key), int, default)
        if not least <= value < LARGEST:
            raise self.file.error(f"has {value} in the field '{self.name}.{key}'")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.file.get(self.field(key), (int, float), default)
        if not (math.isfinite(value) and value > 0):
            raise self.file.error(f"has {value} in the field '{self.name}.{key}'")
        return shortest_float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        return bool(self.file.get(self.field(key), bool, default))

    def text(self, key: str, default: str | None = None) -> str:
        """A word."""
        return str(self.file.get(self.field(key), str, default))

    def refuse(self, finding: str) -> Exception:
        """That a model is of a kind which is not supported."""
        return self.file.error(f"{finding}, which is not supported", "use the original checkpoint")


def shortest_float(value: float) -> float:
    """The decimal number that a stored fp32 value was meant to be: 9.999999747e-06 -> 1e-05."""
    return float(str(np.float32(value)))
