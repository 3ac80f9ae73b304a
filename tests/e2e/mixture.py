"""The demo model as a mixture of experts (Mixtral's form): 4 for each feed-forward network, 2 used.

Expert e is the original network, its output times SCALES[e].  Weights of the two that a random
router chooses sum to one, so the model still speaks, and which ones it chose shows in every logit.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

SCALES = (0.7, 0.9, 1.1, 1.3)
MATRICES = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def write_mixture(source: Path, target: Path) -> Path:
    """Write the Llama checkpoint ``source`` as a mixture of experts to ``target``."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((source / "config.json").read_text())
    config |= {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": len(SCALES),
        "num_experts_per_tok": 2,
        "sliding_window": None,
    }
    (target / "config.json").write_text(json.dumps(config))
    seeded = torch.Generator().manual_seed(0)
    tensors = {}
    for name, weight in load_file(source / "model.safetensors").items():
        block, _, matrix = name.removesuffix(".weight").rpartition(".mlp.")
        if not block:
            tensors[name] = weight
            continue
        for e, scale in enumerate(SCALES):
            expert = f"{block}.block_sparse_moe.experts.{e}.{MATRICES[matrix]}.weight"
            tensors[expert] = weight * scale if matrix == "down_proj" else weight.clone()
        if matrix == "gate_proj":
            router = torch.randn(len(SCALES), weight.shape[1], generator=seeded)
            tensors[f"{block}.block_sparse_moe.gate.weight"] = router.to(weight.dtype)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target
