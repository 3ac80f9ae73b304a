"""What sentence-transformers writes beside a model: modules.json and a folder for each module."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


@dataclass(frozen=True)
class Module:
    """One behind the model: ``kind``, the last word of its type."""

    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)


NORMALIZE = Module("Normalize")


def pooling(*ways: str) -> Module:
    """By "mean_tokens", "cls_token" and so on, and nothing else."""
    known = ("cls_token", "max_tokens", "mean_tokens", *ways)
    return Module("Pooling", {f"pooling_mode_{way}": way in ways for way in known})


def dense(layer: torch.nn.Linear, activation: str) -> Module:
    """activation: of torch, what follows the layer ("activation.Tanh")."""
    config = {
        "in_features": layer.in_features,
        "out_features": layer.out_features,
        "bias": layer.bias is not None,
        "activation_function": f"torch.nn.modules.{activation}",
    }
    weights = {f"linear.{name}": tensor for name, tensor in layer.state_dict().items()}
    return Module("Dense", config, weights)


def write(folder: Path, *modules: Module) -> None:
    """The model is in ``folder`` itself."""
    listed = []
    for number, module in enumerate((Module("Transformer"), *modules)):
        place = f"{number}_{module.kind}" if number else ""
        (folder / place).mkdir(exist_ok=True)
        if module.config:
            (folder / place / "config.json").write_text(json.dumps(module.config))
        if module.weights:
            save_file(module.weights, folder / place / "model.safetensors")
        kind = f"sentence_transformers.models.{module.kind}"
        listed.append({"idx": number, "name": str(number), "path": place, "type": kind})
    (folder / "modules.json").write_text(json.dumps(listed))
