"""Adapters of some of the experts' matrices, by any of their names, are completed.

What: before the host stacks what an adapter has for the experts of a layer, names are made one
    kind, and what it lacks becomes zeros.
Why: the host expects all three matrices of every expert, and in the other form both of all experts,
    of which it tells the one from the other by how they were wrapped; a model that transformers'
    code describes takes two kinds of names, and the host expects both at once.  Otherwise an
    assertion fails.
Since: 0.30
Until: the host takes adapters of some.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.errors import ConfigError
from cpu_backend.host.seam import When, patch


@patch(
    "vllm.lora.model_manager",
    "LoRAModelManager._create_lora_modules(self)",
    when=When.COMPUTING,
)
def one_kind_of_names(original: Any) -> Any:
    """The first, if there are more."""

    def _create_lora_modules(self: Any) -> None:
        original(self)
        for module, _ in _mixtures(self):
            if kinds := _kinds(self, module):
                self.packed_modules[module] = kinds[0]

    return _create_lora_modules


@patch(
    "vllm.lora.worker_manager",
    "WorkerLoRAManager._load_adapter(self, lora_request)",
    when=When.COMPUTING,
)
def complete(original: Any) -> Any:
    """Adapters that were read."""

    def _load_adapter(self: Any, lora_request: Any) -> Any:
        adapter = original(self, lora_request)
        for module, layer in _mixtures(self._adapter_manager):
            if kinds := _kinds(self._adapter_manager, module):
                _rename(adapter.loras, kinds)
                _fill(adapter.loras, kinds[0], self._adapter_manager, module)
            _arrange(adapter.loras, module, layer, lora_request.lora_name)
        return adapter

    return _load_adapter


def _mixtures(manager: Any) -> list[tuple[str, Any]]:
    from vllm.lora.layers import FusedMoEWithLoRA

    return [
        (n, layer) for n, layer in manager.modules.items() if isinstance(layer, FusedMoEWithLoRA)
    ]


def _kinds(manager: Any, module: str) -> list[list[str]]:
    """Names of the matrices of all experts, one after the other: each kind there is; none where an
    adapter has them in few tensors."""
    parent, _, last = module.rpartition(".")
    names = [f"{parent}.{name}" for name in manager.packed_modules_mapping.get(last, ())]
    layer = manager.modules[module]
    count = layer.global_num_experts * (layer._w13_slices + 1)
    return [names[i : i + count] for i in range(0, len(names), count) if len(names) % count == 0]


def _rename(weights: dict[str, Any], kinds: list[list[str]]) -> None:
    for other in kinds[1:]:
        for name, first in zip(other, kinds[0], strict=True):
            if name in weights:
                weights[first] = weights.pop(name)


def _fill(weights: dict[str, Any], names: list[str], manager: Any, module: str) -> None:
    """Zeros for what is not there of those that this rank has."""
    names = manager._restrict_to_local_experts(module, names)
    having = [name for name in names if name in weights]
    if not having or len(having) == len(names):
        return
    kinds = len(names) // manager.modules[module].local_num_experts
    some = {place: weights[name] for place, name in enumerate(names) if name in weights}
    by_projection = {place % kinds: one for place, one in some.items()}
    place, known = next(iter(by_projection.items()))
    down = 1  # the second of an expert's
    inner, outer = known.lora_a.shape[1], known.lora_b.shape[0]
    hidden, intermediate = (outer, inner) if place == down else (inner, outer)
    for at, name in enumerate(names):
        if name not in weights:
            like = by_projection.get(at % kinds, known)
            sizes = (intermediate, hidden) if at % kinds == down else (hidden, intermediate)
            weights[name] = _zeros(name, like, *sizes)


def _zeros(name: str, like: Any, inputs: int, outputs: int) -> Any:
    """Matrices [rank, inputs] and [outputs, rank], of the rank of ``like``."""
    a = like.lora_a.new_zeros(like.lora_a.shape[0], inputs)
    b = like.lora_b.new_zeros(outputs, like.lora_b.shape[1])
    return type(like)(name, like.rank, like.lora_alpha, a, b, like.scaling)


def _arrange(weights: dict[str, Any], module: str, layer: Any, adapter: str) -> None:
    """Those of all experts, if there are any, to the names that the host expects: their sizes tell
    gate and up projections from down projections."""
    outer, inner = module, f"{module}.base_layer"
    given = [weights.pop(name) for name in (inner, outer) if name in weights]
    if not given:
        return
    intermediate = layer.intermediate_size_per_partition * layer.tp_size
    wanted = {
        inner: (layer.hidden_size, 2 * intermediate),
        outer: (intermediate, layer.hidden_size),
    }
    found = {}
    for one in given:
        sizes = one.lora_a.shape[-1], one.lora_b.shape[0]
        name = next((name for name, size in wanted.items() if size == sizes), None)
        if name is None or name in found:
            raise ConfigError(
                f"the LoRA adapter {adapter} has weights of {sizes[0]} inputs and {sizes[1]} "
                f"outputs for {module}, whose experts have {wanted[inner]} and {wanted[outer]}: "
                "load it beside the model that it was trained with."
            )
        found[name] = one
    for name, (inputs, outputs) in wanted.items():
        weights[name] = found.get(name) or _zeros(name, given[0], inputs, outputs)
