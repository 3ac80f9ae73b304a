"""The block types of GGUF as integer codes, scales and offsets: whole matrices of them.

The types are described in layouts.py and grids.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from cpu_backend.gguf.grids import GRIDS
from cpu_backend.gguf.layouts import LAYOUTS, Blocks, typed
from cpu_backend.gguf.reader import BlockType

CHUNK_ELEMENTS = 1 << 22


def columns_together(kind: BlockType) -> int:
    """So many columns beside each other share what they are scaled by; moved together, they stay
    packed."""
    return 256 if kind.name.startswith("TQ") else 32


def groups_stay(kind: BlockType, columns: np.ndarray) -> bool:
    """Whether columns that share a scale stay together when a matrix gets this order of them."""
    if not kind.quantized:
        return True
    size = columns_together(kind)
    if len(columns) % size:
        return False
    groups = columns.reshape(-1, size)
    starts = groups[:, :1]
    return bool((starts % size == 0).all() and (groups == starts + np.arange(size)).all())


def unpack(kind: BlockType, raw: torch.Tensor, order: str = "<") -> Blocks:
    """raw uint8 [rows, bytes] of a quantized type; ``order`` is the file's byte order."""
    columns = raw.shape[1] // kind.nbytes * kind.elements
    codes = torch.empty(raw.shape[0], columns, dtype=torch.uint8)
    parts = []
    for rows in _chunks(raw.shape[0], columns):
        part = _UNPACK[kind.name](raw[rows].unflatten(1, (-1, kind.nbytes)), order)
        codes[rows] = part.codes
        parts.append(part)
    offsets = [part.offsets for part in parts if part.offsets is not None]
    return replace(
        parts[0],
        codes=codes,
        scales=torch.cat([part.scales for part in parts]),
        offsets=torch.cat(offsets) if offsets else None,
    )


def dequantize(
    kind: BlockType, raw: torch.Tensor, order: str = "<", dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """raw uint8 [rows, bytes] of any type as a matrix of ``dtype``."""
    if not kind.quantized:
        return typed(raw, _PLAIN[kind.name], order).to(dtype)
    columns = raw.shape[1] // kind.nbytes * kind.elements
    result = torch.empty(raw.shape[0], columns, dtype=dtype)
    for rows in _chunks(raw.shape[0], columns):
        result[rows] = unpack(kind, raw[rows], order).dequantized()
    return result


def _chunks(rows: int, columns: int) -> Iterator[slice]:
    """Rows to work on at a time, so that what is made in between stays small."""
    step = max(1, CHUNK_ELEMENTS // columns)
    for start in range(0, rows, step):
        yield slice(start, start + step)


_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_UNPACK = LAYOUTS | GRIDS
