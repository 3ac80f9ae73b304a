"""The demo model with heads added that add nothing, so that two ranks can share its heads.

It has 9 query and 3 key-value heads.  A head whose rows of q, k and v and whose columns of the
output projection are zero contributes exactly 0.0 to every sum, so the model with 12 and 4 heads
computes the same function, and its tokens must be those of the original.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def write_even_heads(source: Path, target: Path) -> None:
    """Copy the checkpoint ``source`` to ``target`` with a third more heads of either kind."""
    config = json.loads((source / "config.json").read_text())
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    more_kv = kv_heads + kv_heads % 2
    config |= {"num_attention_heads": heads // kv_heads * more_kv, "num_key_value_heads": more_kv}
    (target / "config.json").write_text(json.dumps(config))
    rows = {
        "q_proj": config["num_attention_heads"] * config["head_dim"],
        "k_proj": more_kv * config["head_dim"],
        "v_proj": more_kv * config["head_dim"],
    }
    weights = load_file(source / "model.safetensors")
    for name, weight in weights.items():
        layer = name.split(".")[-2]
        if layer in rows:
            weights[name] = _padded(weight, 0, rows[layer])
        elif layer == "o_proj":
            weights[name] = _padded(weight, 1, rows["q_proj"])
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


def _padded(weight: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    shape = list(weight.shape)
    shape[dim] = size - shape[dim]
    return torch.cat([weight, weight.new_zeros(shape)], dim).contiguous()
