"""The tensors of a GGUF file as those of a Hugging Face checkpoint: where each is, and its numbers.

What llama.cpp has changed is changed back: the order of rows, of Llama's query and key projections;
tensors that are one there and several here, or the other way; and numbers, where an architecture
says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch

from cpu_backend.gguf import blocks
from cpu_backend.gguf.architectures.tensors import JOINED, Tensor, joined, shape_of
from cpu_backend.gguf.reader import BlockType, GgufFile, TensorInfo


@dataclass(frozen=True)
class Entry:
    """A tensor of the checkpoint.

    info: in the file.  shape: here; fewer rows than there where it is a part, which begins at
    ``first``.  heads: within which its rows are interleaved, if not 0.  rows, columns: those of
    the file that are the checkpoint's, if they are others or in another order.  beside: what else
    its numbers are made of.  below: what follows after the last row.
    """

    info: TensorInfo
    tensor: Tensor
    shape: tuple[int, ...]
    first: int = 0
    heads: int = 0
    rows: np.ndarray | None = None
    columns: np.ndarray | None = None
    beside: Entry | None = None
    below: Entry | None = None

    def parts(self) -> list[Entry]:
        """Itself and what else it is made of."""
        others = (part for part in (self.below, self.beside) if part is not None)
        return [self, *(each for part in others for each in part.parts())]

    @property
    def kind(self) -> BlockType:
        """Its type in the file."""
        return self.info.kind

    @property
    def as_numbers(self) -> bool:
        """Whether it is read as numbers, and not packed from the file's blocks."""
        return (
            len(self.shape) == 1
            or self.tensor.plain
            or self.tensor.values is not None
            or (self.below is not None and self.below.kind != self.kind)
            or (self.columns is not None and not blocks.groups_stay(self.kind, self.columns))
        )


class Weights:
    """The tensors of a file; raises ConfigError where one is missing or of another shape."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file

    def read(
        self, block: str, prefix: str, tensors: dict[str, Tensor], sizes: dict[str, int]
    ) -> dict[str, Entry]:
        """The entries of ``tensors``, whose names have ``block`` before them in the file and
        ``prefix`` in the checkpoint."""
        found = {
            prefix + tensor.name: self._find(block, name, tensor, tensors, sizes)
            for name, tensor in tensors.items()
        }
        return {name: entry for name, entry in found.items() if entry is not None}

    def check_all_used(self, entries: Iterable[Entry], ignored: Callable[[str], bool]) -> None:
        """That the file has no tensor but those of ``entries`` and what is ``ignored``."""
        used = {part.info.name for entry in entries for part in entry.parts()}
        for name in sorted(self.file.tensors.keys() - used):
            if not ignored(name):
                raise self.file.error(
                    f"has the unknown tensor '{name}'", "use the original checkpoint"
                )

    def _find(
        self,
        block: str,
        name: str,
        tensor: Tensor,
        tensors: dict[str, Tensor],
        sizes: dict[str, int],
    ) -> Entry | None:
        name, _, second = name.partition("|")[0].partition("+")
        if second and (below := self._find(block, second, tensor, tensors, sizes)) is not None:
            above = self._find(block, name, tensor, tensors, sizes)
            if above is None or tensor.rows or tensor.columns:
                raise self.file.error(f"has no tensor '{block}{name}'", "choose a whole model")
            rows_of_both = above.shape[0] + below.shape[0]
            return replace(above, shape=(rows_of_both, *above.shape[1:]), below=below)
        shape = whole = shape_of(name, tensor, sizes)
        place, first = block + name, 0
        if place not in self.file.tensors and (longer := joined(place, self.file.tensors)):
            place = longer
            kind, _, ending = name.rpartition(".")
            kinds = next(parts for parts in JOINED.values() if kind in parts)
            parts = [f"{part}.{ending}" for part in kinds]
            axis = max(len(shape) - 2, 0)  # of rows
            each = [shape_of(part, tensors[part], sizes)[axis] for part in parts]
            first = sum(each[: parts.index(name)])
            whole = (*shape[:axis], sum(each), *shape[axis + 1 :])
        info = self.file.tensors.get(place)
        if info is None:
            if tensor.optional:
                return None
            raise self.file.error(f"has no tensor '{place}'", "choose a whole model")
        if same_rows(info, whole):
            info = replace(info, shape=whole)
        else:
            raise self.file.error(
                f"has the tensor '{place}' of shape {list(info.shape)} and "
                f"{list(whole)} is expected"
            )
        if len(shape) == 1 and info.kind.quantized:
            raise self.file.error(f"has the vector '{place}' in {info.kind.name}")
        heads = sizes[tensor.heads] if tensor.heads else 0
        chosen = tensor.rows(shape[0]) if tensor.rows else None
        columns = tensor.columns(shape[-1]) if tensor.columns else None
        if chosen is not None:
            shape = (len(chosen), *shape[1:])
        beside = None
        if tensor.beside:
            other, other_shape = tensor.beside
            beside = self._find(block, other, Tensor("", other_shape), tensors, sizes)
        return Entry(info, tensor, shape, first, heads, chosen, columns, beside)

    def raw(self, entry: Entry) -> torch.Tensor:
        """The bytes of a tensor, uint8 [..., rows, bytes], rows in checkpoint order; mapped, or a
        copy where they had to be moved."""
        if entry.below is not None:
            return torch.cat([self.raw(part) for part in apart(entry)])
        info = entry.info
        mapped = torch.from_file(  # private: nothing that is done to it reaches the file
            str(info.path), shared=False, size=info.offset + info.nbytes, dtype=torch.uint8
        )
        vector = len(info.shape) == 1  # whose numbers are moved as rows are
        shape = (*info.shape, info.kind.nbytes) if vector else (*info.shape[:-1], info.row_bytes)
        rows = mapped[info.offset :].view(shape)
        # A quantized block lies within one row, so moving rows loses nothing.
        if entry.rows is not None:
            return rows[torch.from_numpy(entry.rows)]
        rows = rows.narrow(-2, entry.first, entry.shape[0 if vector else -2])
        if entry.tensor.loaded is not None:
            return torch.as_tensor(entry.tensor.loaded(rows))
        return undo_rope_permutation(rows, entry.heads) if entry.heads else rows

    def values(self, entry: Entry, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor as numbers of ``dtype``."""
        if entry.below is not None:
            return torch.cat([self.values(part, dtype) for part in apart(entry)])
        raw = self.raw(entry)
        make = entry.tensor.values
        rows = raw.reshape(-1, raw.shape[-1])
        wanted = torch.float32 if make else dtype
        numbers = blocks.dequantize(entry.kind, rows, self.file.order, wanted).view(entry.shape)
        if entry.columns is not None:
            numbers = numbers[..., torch.from_numpy(entry.columns)]
        if make is None:
            return numbers
        beside = [self.values(entry.beside)] if entry.beside else []
        return make(numbers, *beside).to(dtype)


def apart(entry: Entry) -> list[Entry]:
    """The two tensors of which one has another below it."""
    assert entry.below is not None
    rows = entry.shape[0] - entry.below.shape[0]
    return [replace(entry, shape=(rows, *entry.shape[1:]), below=None), entry.below]


def same_rows(info: TensorInfo, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of the file has this shape, but for sizes of 1, which llama.cpp moves."""
    found, wanted = ([size for size in s if size > 1] for s in (info.shape, shape))
    return found == wanted and (info.shape[-1] == shape[-1] or not info.kind.quantized)


def undo_rope_permutation(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Bring rows of a query or key projection from GGUF order back to checkpoint order.

    weight [num_heads * head_dim, any].  RoPE turns pairs of rows of each head: llama.cpp stores a
    pair as rows (2i, 2i + 1), a Hugging Face checkpoint as rows (i, i + head_dim / 2).
    """
    head_dim = weight.shape[0] // num_heads
    pairs = weight.reshape(num_heads, head_dim // 2, 2, -1)
    return pairs.transpose(1, 2).reshape(weight.shape)
