"""Copies of GGUF files of a Llama with other tensors in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from cpu_backend.gguf.reader import GgufFile

# The tensors in the place of one: under their names, rows of blocks and their type.
Changed = dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]]


def write_copy(
    source: Path,
    target: Path,
    change: Callable[[gguf.ReaderTensor], Changed],
    metadata: dict[str, Any] | None = None,
) -> Path:
    """``target``: what ``change`` makes of each tensor, and ``metadata`` beside the source's."""
    tensors = {}
    for tensor in gguf.GGUFReader(source).tensors:
        tensors.update(change(tensor))
    return write(target, "llama", GgufFile(source).metadata | (metadata or {}), tensors)


def write(target: Path, architecture: str, metadata: dict[str, Any], tensors: Changed) -> Path:
    writer = gguf.GGUFWriter(target, architecture)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    add |= {str: writer.add_string, list: writer.add_array}
    for key, value in metadata.items():
        if key != "general.architecture":
            plain = value.tolist() if isinstance(value, np.ndarray) else value
            add[type(plain)](key, plain)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def write_mixed(source: Path, target: Path) -> Path:
    """A copy with other types in some matrices, so that merged layers have two of them; each
    holds the values of the original as well as fp16 does, or to 1/127 of a block's largest."""
    kinds = {"attn_v": "Q8_0", "ffn_up": "Q8_0", "attn_output": "F16", "ffn_down": "F32"}

    def change(tensor: gguf.ReaderTensor) -> Changed:
        name = kinds.get(tensor.name.split(".")[-2])
        if name is None:
            return {tensor.name: (tensor.data, tensor.tensor_type)}
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = gguf.GGMLQuantizationType[name]
        return {tensor.name: (gguf.quants.quantize(values, kind), kind)}

    return write_copy(source, target, change)
