"""What a loader of the host's layers does here: compare what has come (whole_weights.py), load it,
and note that it has come (arrivals.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cpu_backend.layers import whole_weights
from cpu_backend.layers.arrivals import arriving

Load = Callable[..., Any]


def linear(load: Load) -> Load:
    """Of linear layers: a parameter, or one or several shards of it."""

    def weight_loader(
        self: Any,
        param: torch.nn.Parameter,
        loaded_weight: torch.Tensor,
        loaded_shard_id: Any = None,
    ) -> Any:
        whole_weights.compare_linear(self, param, loaded_weight, loaded_shard_id)
        shard = () if loaded_shard_id is None else (loaded_shard_id,)
        shards = loaded_shard_id if isinstance(loaded_shard_id, tuple) else shard
        with arriving(self, param, set(shards) or None):
            return load(self, param, loaded_weight, *shard)

    return weight_loader


def embedding(load: Load) -> Load:
    """Of embeddings and heads, which only compare."""

    def weight_loader(self: Any, param: torch.nn.Parameter, loaded_weight: torch.Tensor) -> Any:
        whole_weights.compare_embedding(self, param, loaded_weight)
        return load(self, param, loaded_weight)

    return weight_loader


def experts(load: Load) -> Load:
    """Of experts: a matrix of one, or of all."""

    def weight_loader(
        self: Any,
        param: torch.nn.Parameter,
        loaded_weight: torch.Tensor,
        weight_name: str,
        shard_id: str,
        expert_id: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        whole_weights.compare_experts(self, param, loaded_weight, weight_name, shard_id)
        whole = loaded_weight.dim() == param.dim() == 3
        numbers = range(self.local_num_experts) if whole else [expert_id]
        with arriving(self, param, {(expert, shard_id) for expert in numbers}):
            return load(
                self, param, loaded_weight, weight_name, shard_id, expert_id, *args, **kwargs
            )

    return weight_loader
