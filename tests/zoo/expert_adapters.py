"""Adapters of the experts and the routers in a mixture, by the names that published ones have."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

# What a projection is called among an expert's: the gate, the up and the down projection.
PROJECTIONS = ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")
GATE, UP, DOWN = range(3)
FIRST_EXPERT = re.compile(r"(.*?layers\.(\d+)\..*experts)\.0\.(\w+)\.weight")
ROUTER = re.compile(r"(?:^|\.)(gate|router|router\.gate|router\.layer|classifier)\.weight$")

Weights = dict[str, Callable[[Any], torch.Tensor]]


def names_in(folder: Path) -> list[str]:
    """Of the tensors in a checkpoint."""
    names: list[str] = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            names += file.keys()
    return names


def one_by_one(model: Any, folder: Path) -> Weights:
    """Each expert's matrices, by their names in the checkpoint or, where all are one tensor there,
    by usual ones."""
    published = {
        (int(found[2]), found[3]): found[1]
        for found in map(FIRST_EXPERT.match, names_in(folder))
        if found
    }
    weights: Weights = {}
    for name, experts in _fused(model).items():
        layer = int(re.search(r"layers\.(\d+)", name)[1])  # type: ignore[index]
        for role, projections in enumerate(PROJECTIONS):
            if role == GATE and not hasattr(experts, "gate_up_proj"):
                continue
            projection = next((p for p in projections if (layer, p) in published), projections[0])
            prefix = published.get((layer, projection), name)
            for expert in range(len(experts.down_proj)):
                weights[f"{prefix}.{expert}.{projection}"] = partial(_of_one, name, role, expert)
    return weights


def stacked(model: Any) -> Weights:
    """The two matrices of all experts, as peft calls its parameters' wrappers."""
    weights: Weights = {}
    for name in _fused(model):
        weights[f"{name}.base_layer"] = partial(_of_all, name, "gate_up_proj")
        weights[name] = partial(_of_all, name, "down_proj")
    return weights


def routers(model: Any, folder: Path) -> Weights:
    """Routers and the gates of shared experts, by their names in the checkpoint."""
    inside = {
        int(re.search(r"layers\.(\d+)", name)[1]): name  # type: ignore[index]
        for name, parameter in model.named_parameters()
        if ROUTER.search(name) and parameter.dim() == 2
    }
    weights: Weights = {}
    for name in names_in(folder):
        if ROUTER.search(name):
            layer = int(re.search(r"layers\.(\d+)", name)[1])  # type: ignore[index]
            weights[name.removesuffix(".weight")] = operator.methodcaller(
                "get_parameter", inside[layer]
            )
        if name.endswith("shared_expert_gate.weight"):
            weights[name.removesuffix(".weight")] = operator.methodcaller("get_parameter", name)
    return weights


def _fused(model: Any) -> dict[str, Any]:
    """The modules that have the weights of all experts of a layer, by their names."""
    return {
        name: module
        for name, module in model.named_modules()
        if getattr(getattr(module, "down_proj", None), "ndim", 0) == 3
    }


def _of_all(name: str, projection: str, model: Any) -> torch.Tensor:
    """[experts, outputs, inputs]"""
    experts = model.get_submodule(name)
    weight: torch.Tensor = getattr(experts, projection).detach()
    transposed = getattr(experts, "is_transposed", type(experts).__name__ == "Llama4TextExperts")
    return weight.transpose(1, 2) if transposed else weight


def _of_one(name: str, role: int, expert: int, model: Any) -> torch.Tensor:
    """[outputs, inputs] of one of its PROJECTIONS."""
    if role == DOWN:
        return _of_all(name, "down_proj", model)[expert]
    experts = model.get_submodule(name)
    if not hasattr(experts, "gate_up_proj"):
        return _of_all(name, "up_proj", model)[expert]
    both = _of_all(name, "gate_up_proj", model)[expert]
    if getattr(experts, "is_concatenated", True):
        return both.chunk(2)[role]
    return both[role::2]
