"""The demo model with heads added that add nothing, so that two ranks can share its heads.

It has 9 query and 3 key-value heads.  A head whose rows of q, k and v and whose columns of the
output projection are zero contributes exactly 0.0 to every sum, so the model with 12 and 4 heads
computes the same function, and its tokens must be those of the original.

``layers`` keeps only the first of them: no longer a model that says anything, but one that starts
quickly and in which a difference is not blown up by the layers that follow.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.e2e.gguf_copy import Changed, write_copy

HEAD = 64  # channels of a head
ROWS = {"q": 12 * HEAD, "k": 4 * HEAD, "v": 4 * HEAD}


def write_even_heads(source: Path, target: Path, layers: int | None = None) -> None:
    """Copy the checkpoint ``source`` to ``target`` with a third more heads of either kind."""
    config = json.loads((source / "config.json").read_text())
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    config |= {"num_attention_heads": 12, "num_key_value_heads": 4}
    if layers is not None:
        config["num_hidden_layers"] = layers
    (target / "config.json").write_text(json.dumps(config))
    weights = {}
    for name, weight in load_file(source / "model.safetensors").items():
        path = name.split(".")
        if path[1] == "layers" and int(path[2]) >= config["num_hidden_layers"]:
            continue
        rows = ROWS.get(path[-2].removesuffix("_proj"))
        columns = ROWS["q"] if path[-2] == "o_proj" else None
        weights[name] = _padded(weight, rows, columns)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


def write_even_heads_gguf(source: Path, target: Path, layers: int) -> Path:
    """The same of a GGUF file: in every type of block, zero bytes are zero weights."""

    def change(tensor: gguf.ReaderTensor) -> Changed:
        path = tensor.name.split(".")
        if path[0] == "blk" and int(path[1]) >= layers:
            return {}
        data, rows, columns = tensor.data, ROWS.get(path[-2].removeprefix("attn_")), None
        if path[-2] == "attn_output":  # whose columns are blocks of several channels
            columns = data.shape[1] * ROWS["q"] // int(tensor.shape[0])
        padded = np.asarray(_padded(torch.tensor(data), rows, columns))
        return {tensor.name: (padded, tensor.tensor_type)}

    metadata = {
        "block_count": layers,
        "attention.head_count": 12,
        "attention.head_count_kv": 4,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
    }
    return write_copy(
        source, target, change, {f"llama.{key}": value for key, value in metadata.items()}
    )


def _padded(weight: torch.Tensor, rows: int | None, columns: int | None) -> torch.Tensor:
    """Zeros below and to the right."""
    if rows is None and columns is None:
        return weight
    more_rows = (rows or weight.shape[0]) - weight.shape[0]
    more_columns = (columns or weight.shape[1]) - weight.shape[1]
    return torch.nn.functional.pad(weight, (0, more_columns, 0, more_rows))
