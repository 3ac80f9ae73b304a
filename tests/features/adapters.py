"""LoRA adapters as peft writes them, of random numbers, and models with one merged in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

RANK, ALPHA = 4, 8
SIZE = 0.3  # of both matrices: answers change, and remain sentences
PREFIX, A, B = "base_model.model.", ".lora_A", ".lora_B"


def write(folder: Path, config: dict[str, Any], seed: int) -> Path:
    """An adapter of every projection of a Llama with ``config``."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    sizes = {
        "self_attn.q_proj": (hidden, queries),
        "self_attn.k_proj": (hidden, keys),
        "self_attn.v_proj": (hidden, keys),
        "self_attn.o_proj": (queries, hidden),
        "mlp.gate_proj": (hidden, inner),
        "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }
    layers = {
        f"model.layers.{layer}.{module}": size
        for layer in range(config["num_hidden_layers"])
        for module, size in sizes.items()
    }
    return write_for(layers, folder, seed)


def write_for(
    layers: dict[str, tuple[int, int]],
    folder: Path,
    seed: int,
    stacked: dict[str, tuple[int, int, int]] | None = None,
) -> Path:
    """An adapter of linear layers with so many inputs and outputs, by their names.

    stacked: of matrices of all experts in one tensor, with so many experts, inputs and outputs.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    sizes = {name: (1, *size) for name, size in layers.items()} | (stacked or {})
    for layer, (experts, inputs, outputs) in sizes.items():
        a = torch.randn(experts * RANK, inputs, generator=generator)
        b = torch.randn(outputs, RANK * experts, generator=generator)
        tensors[f"{PREFIX}{layer}{A}.weight"] = a * SIZE / inputs**0.5
        tensors[f"{PREFIX}{layer}{B}.weight"] = b * SIZE / RANK**0.5
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    description = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(description))
    return folder


def merge(
    model: Any, folder: Path, weights: dict[str, Callable[[Any], torch.Tensor]] | None = None
) -> Any:
    """``model`` of transformers with the adapter added to its weights.

    weights: what gives a layer's weight [outputs, inputs], or that of all experts [experts,
    outputs, inputs], as a part of the model's memory, where its name does not.
    """
    tensors = load_file(folder / "adapter_model.safetensors")
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, a in tensors.items():
            if A in name:
                layer = name.removeprefix(PREFIX).replace(f"{A}.weight", "")
                found = (weights or {}).get(layer)
                weight = found(model) if found else parameters[f"{layer}.weight"]
                weight += _product(a, tensors[name.replace(A, B)], weight.dim()) * (ALPHA / RANK)
    return model


def _product(a: torch.Tensor, b: torch.Tensor, dims: int) -> torch.Tensor:
    """b @ a, or of each expert: a [experts * rank, inputs], b [outputs, rank * experts], the
    experts one after the other in a and in turns in b, as peft has them."""
    if dims == 2:
        return b @ a
    by_expert = a.unflatten(0, (-1, RANK))
    return torch.einsum("ore,eri->eoi", b.unflatten(1, (RANK, -1)), by_expert)
