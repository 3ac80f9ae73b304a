"""Reads what a GGUF file holds: metadata, and where each tensor lies.

Nothing in the file is believed: every length is compared with the bytes that are left before
anything is allocated for it, so a damaged or hostile file ends in one sentence (ConfigError).
The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import importlib.util
import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from cpu_backend.errors import ConfigError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 1 << 16
# No vocabulary is as large; a list of strings takes ten times its room in the file.
MAX_STRINGS = 1 << 22
MAX_PARTS = 99999  # by their names

# Type number -> its name in the module struct, which numpy knows too.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
BOOL, STRING, ARRAY = 7, 8, 9


@dataclass(frozen=True)
class BlockType:
    """A tensor type: rows are sequences of blocks of ``elements`` values in ``nbytes`` bytes."""

    name: str
    elements: int
    nbytes: int

    @property
    def quantized(self) -> bool:
        return self.elements > 1

    @property
    def needs_grid(self) -> bool:
        """Whether its values are in tables that the package ``gguf`` has (grids.py)."""
        return self.name.startswith(("IQ1", "IQ2", "IQ3"))


BLOCK_TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    16: BlockType("IQ2_XXS", 256, 66),
    17: BlockType("IQ2_XS", 256, 74),
    18: BlockType("IQ3_XXS", 256, 98),
    19: BlockType("IQ1_S", 256, 50),
    20: BlockType("IQ4_NL", 32, 18),
    21: BlockType("IQ3_S", 256, 110),
    22: BlockType("IQ2_S", 256, 82),
    23: BlockType("IQ4_XS", 256, 136),
    29: BlockType("IQ1_M", 256, 56),
    30: BlockType("BF16", 1, 2),
    34: BlockType("TQ1_0", 256, 54),
    35: BlockType("TQ2_0", 256, 66),
    39: BlockType("MXFP4", 32, 17),
    40: BlockType("NVFP4", 64, 36),
}
# Types that exist and are not computed here, for a better sentence.
OTHER_TYPES = {
    **{9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"},
}


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a file: ``shape`` with the dimension that lies dense in memory last, and its
    bytes [offset, offset + nbytes) of the file ``path``."""

    name: str
    kind: BlockType
    shape: tuple[int, ...]
    offset: int
    path: Path

    @property
    def row_bytes(self) -> int:
        return self.shape[-1] // self.kind.elements * self.kind.nbytes

    @property
    def nbytes(self) -> int:
        return prod(self.shape[:-1]) * self.row_bytes


def is_gguf(path: Path) -> bool:
    """Whether ``path`` is meant to be a GGUF file, whatever is in it."""
    if path.suffix.lower() == ".gguf":
        return not path.is_dir()
    try:
        with path.open("rb") as handle:
            return handle.read(4) == MAGIC
    except OSError:
        return False


class GgufFile:
    """Metadata and tensors of a file, read once; weights stay on the disk.

    A model in several files has its metadata in the first, NAME-00001-of-00003.gguf; the tensors of
    the others, which lie beside it, are this one's, too.
    metadata: numbers, bool, str, list[str], or numpy arrays of numbers.  Without ``vocabulary``
    lists of strings are left empty: hundreds of thousands that only the tokenizer needs.
    """

    def __init__(self, path: Path, vocabulary: bool = True) -> None:
        self._read_one(path, vocabulary)
        if self.get("split.count", int, 1) > 1:
            self._add_parts()

    @classmethod
    def _part(cls, path: Path) -> GgufFile:
        part = cls.__new__(cls)
        part._read_one(path, vocabulary=False)
        return part

    def _add_parts(self) -> None:
        """The tensors of the files that lie beside the first of a model."""
        count, number = self.get("split.count", int), self.get("split.no", int)
        name, is_part, _ = self.path.stem.rpartition(f"-{number + 1:05}-of-{count:05}")
        if not is_part or not 0 < count <= MAX_PARTS:
            raise self.error(
                f"is part {number + 1} of {count} and not called so",
                "call the parts NAME-00001-of-00003.gguf and so on",
            )
        files = [
            self.path.with_name(f"{name}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)
        ]
        if number != 0:
            raise self.error(
                f"is part {number + 1} of {count}", f"give the first, '{files[0].name}'"
            )
        for index, path in enumerate(files[1:], 1):
            part = self._part(path)
            if (part.get("split.no", int), part.get("split.count", int)) != (index, count):
                raise part.error(f"is not part {index + 1} of '{self.path.name}'")
            if twice := part.tensors.keys() & self.tensors.keys():
                raise part.error(f"has the tensor '{min(twice)}' of another part")
            self.tensors |= part.tensors
        if self.get("split.tensors.count", int, len(self.tensors)) != len(self.tensors):
            raise self.error(f"has {len(self.tensors)} tensors in its {count} parts")

    def _read_one(self, path: Path, vocabulary: bool) -> None:
        self.path = path
        self._vocabulary = vocabulary
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            with path.open("rb") as handle:
                self._size = path.stat().st_size
                if self._size < 24:
                    raise self.error("is too short to be a GGUF file")
                with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    self._read(data)
        except OSError as error:
            raise ConfigError(
                f"The GGUF file '{path}' cannot be read ({error.strerror}): check its path."
            ) from error

    def error(self, finding: str, way_out: str = "fetch it again") -> ConfigError:
        """One sentence about this file."""
        return ConfigError(f"The GGUF file '{self.path.name}' {finding}: {way_out}.")

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """The value of ``key``, which must be of type ``kind``; without a default it must exist."""
        value = self.metadata.get(key, default)
        if value is None:
            raise self.error(f"has no field '{key}'", "choose a file that is a whole model")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(f"has a field '{key}' of another type than expected")
        return value

    # ---- parsing -----------------------------------------------------------------------------

    def _read(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 4
        try:
            self._read_all()
        finally:
            del self._data

    def _read_all(self) -> None:
        if self._data[:4] != MAGIC:
            raise self.error("is not a GGUF file (its first bytes are others)", "choose another")
        self.order = "<"
        (version,) = struct.unpack_from("<I", self._data, 4)
        if version & 0xFFFF == 0:  # written on, and for, machines of the other byte order
            self.order = ">"
        version = self._scalar("I", "the version")
        if version not in VERSIONS:
            raise self.error(f"is of version {version}, known are 2 and 3", "convert it again")
        num_tensors = self._scalar("Q", "the number of tensors")
        num_fields = self._scalar("Q", "the number of fields")
        self._require(num_tensors * 24 + num_fields * 13, "as many fields and tensors as it says")
        for _ in range(num_fields):
            key = self._string("the name of a field", MAX_NAME_BYTES)
            if key in self.metadata:
                raise self.error(f"has the field '{key}' twice")
            self.metadata[key] = self._value(self._scalar("I", key), f"the field '{key}'")
        found = [self._tensor_info() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self.error(f"has an alignment of {alignment}, which is no power of two")
        start = -(-self._at // alignment) * alignment
        for name, kind, shape, offset in found:
            info = TensorInfo(name, kind, shape, start + offset, self.path)
            self._place(info, offset % alignment)

    def _require(self, nbytes: int, what: str) -> None:
        if nbytes > self._size - self._at:
            raise self.error(f"ends before {what}")

    def _scalar(self, kind: str, what: str) -> Any:
        code = self.order + kind
        nbytes = struct.calcsize(code)
        self._require(nbytes, what)
        (value,) = struct.unpack_from(code, self._data, self._at)
        self._at += nbytes
        return value

    def _numbers(self, kind: str, count: int, what: str) -> np.ndarray:
        dtype = np.dtype(self.order + kind)
        self._require(count * dtype.itemsize, what)
        found = np.frombuffer(self._data, dtype, count, self._at).astype(dtype.newbyteorder("="))
        self._at += count * dtype.itemsize
        return found

    def _string(self, what: str, limit: int = 1 << 62) -> str:
        length = self._scalar("Q", what)
        self._require(length, what)
        if length > limit:
            raise self.error(f"has {length} bytes in {what}")
        raw = self._data[self._at : self._at + length]
        self._at += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"has no valid UTF-8 in {what}") from error

    def _skip_string(self, what: str) -> None:
        length = self._scalar("Q", what)
        self._require(length, what)
        self._at += length

    def _value(self, kind: int, what: str) -> Any:
        if kind in SCALARS:
            return self._scalar(SCALARS[kind], what)
        if kind == BOOL:
            return bool(self._scalar("B", what))
        if kind == STRING:
            return self._string(what)
        if kind == ARRAY:
            return self._array(what)
        raise self.error(f"has the unknown type {kind} in {what}")

    def _array(self, what: str) -> Any:
        kind, count = self._scalar("I", what), self._scalar("Q", what)
        if kind in SCALARS:
            return self._numbers(SCALARS[kind], count, what)
        if kind == BOOL:
            return self._numbers("B", count, what) != 0
        if kind == STRING:
            self._require(8 * count, what)
            if count > MAX_STRINGS:
                raise self.error(f"has {count} strings in {what}")
            if self._vocabulary:
                return [self._string(what) for _ in range(count)]
            for _ in range(count):
                self._skip_string(what)
            return []
        raise self.error(f"has an array of the unknown type {kind} in {what}")

    def _tensor_info(self) -> tuple[str, BlockType, tuple[int, ...], int]:
        name = self._string("the name of a tensor", MAX_NAME_BYTES)
        what = f"the description of the tensor '{name}'"
        dimensions = self._scalar("I", what)
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self.error(f"has {dimensions} dimensions in the tensor '{name}'")
        shape = tuple(int(size) for size in self._numbers("Q", dimensions, what)[::-1])
        number, offset = self._scalar("I", what), self._scalar("Q", what)
        if number not in BLOCK_TYPES:
            known = OTHER_TYPES.get(number)
            raise self.error(
                f"has the tensor '{name}' in {known or f'the unknown type {number}'}"
                + (", which is not supported" if known else ""),
                "choose one in " + ", ".join(kind.name for kind in BLOCK_TYPES.values()),
            )
        kind = BLOCK_TYPES[number]
        if kind.needs_grid and importlib.util.find_spec("gguf") is None:
            raise self.error(
                f"has the tensor '{name}' in {kind.name}, whose tables are in the package gguf",
                "pip install gguf",
            )
        return name, kind, shape, offset

    def _place(self, tensor: TensorInfo, misplaced: int) -> None:
        """Add a tensor whose bytes lie inside the file."""
        what = f"the tensor '{tensor.name}'"
        if tensor.name in self.tensors:
            raise self.error(f"has {what} twice")
        if min(tensor.shape) < 1:
            raise self.error(f"has {what} of shape {list(tensor.shape)}")
        if tensor.shape[-1] % tensor.kind.elements:
            raise self.error(
                f"has {what} with rows of {tensor.shape[-1]} values, which are no whole blocks of "
                f"{tensor.kind.elements}"
            )
        if misplaced:
            raise self.error(f"has {what} at a place that is not aligned")
        if tensor.offset + tensor.nbytes > self._size:
            raise self.error(f"ends before {what} does")
        self.tensors[tensor.name] = tensor
