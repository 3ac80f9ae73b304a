"""A layer is packed as soon as the checkpoint has given it all of its weights.

The host reads the whole checkpoint into parameters and has its layers process them after that: a
model that is quantized while it is loaded would first take the memory of one that is not.  Here a
layer's parameters are given back before the next layer's are touched.

A layer awaits every shard (a query, a gate, an expert's matrix) of every parameter.  What does not
come, because the checkpoint has no bias or a model loads a parameter in a way of its own, leaves
the layer to the host's pass after loading.  Left to it are also embeddings and heads, which models
tie to each other when all is loaded, draft models, some of which read their layers' weights then,
and experts of which other ranks have some: the host looks up the parameters for those, too.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from cpu_backend.errors import ConfigError
from cpu_backend.host.bases import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    ModelConfig,
    QKVParallelLinear,
    QuantizeMethodBase,
    RoutedExperts,
    RowParallelLinear,
)

Load = Callable[..., Any]
Shards = set[Hashable] | None  # of a parameter that comes in several; None: all of it
LINEAR = (ColumnParallelLinear, MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear)
LOADERS = ("weight_loader", "weight_loader_v2")


class Arrivals:
    """The shards that ``layer`` awaits of each of ``params``, its own by name."""

    def __init__(self, layer: torch.nn.Module, params: dict[str, torch.nn.Parameter]) -> None:
        self._layer, self._params = layer, params
        self._awaited = {name: _shards(layer, name) for name in params}
        self.packed = False

    def note(self, param: torch.nn.Parameter, shards: Shards) -> None:
        """These have come, or all of them; pack the layer if nothing is left to come."""
        for name, own in self._params.items():
            if own is param:
                self._awaited[name] -= self._awaited[name] if shards is None else shards
        if not self.packed and not any(self._awaited.values()):
            self.packed = True
            self._pack()

    def _pack(self) -> None:
        before = list(self._layer.parameters(recurse=False))
        self._layer.quant_method.process_weights_after_loading(self._layer)
        for name, own in self._params.items():
            if getattr(self._layer, name, None) is not own:
                _give_back(own)  # the loop that loads holds it, too
        for param in self._layer.parameters(recurse=False):
            stands_in = not any(param is own for own in before)
            if stands_in and not hasattr(param, "weight_loader"):  # the host would load any tensor
                param.weight_loader = functools.partial(_refuse, self._layer)
        self._params.clear()


def _give_back(param: torch.nn.Parameter) -> None:
    """A parameter's memory, or that of the tensors it is made of (torchao)."""
    if is_traceable_wrapper_subclass(param.data):
        for name in param.data.__tensor_flatten__()[0]:
            inner = getattr(param.data, name)
            setattr(param.data, name, inner.new_empty(0))
    else:
        param.data = param.data.new_empty(0)


def _shards(layer: torch.nn.Module, name: str) -> set[Hashable]:
    """The shards of a parameter; what comes for a whole layer has none but None."""
    if isinstance(layer, RoutedExperts):
        gated = ("w1", "w3") if layer.moe_config.is_act_and_mul else ("w1",)
        matrices = ("w2",) if name.startswith("w2_") else gated
        return set(itertools.product(range(layer.local_num_experts), matrices))
    if isinstance(layer, QKVParallelLinear):
        return {"q", "k", "v"}
    if isinstance(layer, MergedColumnParallelLinear):
        return set(range(len(layer.output_sizes)))
    return {None}


def _counts(layer: torch.nn.Module) -> bool:
    """Whether the host's own loaders, which tell what comes, are those of ``layer``."""
    if not isinstance(getattr(layer, "quant_method", None), QuantizeMethodBase):
        return False
    if isinstance(layer, RoutedExperts):
        alone = layer.local_num_experts == layer.global_num_experts
        return alone and type(layer).weight_loader is RoutedExperts.weight_loader
    return isinstance(layer, LINEAR) and any(
        all(getattr(type(layer), name) is getattr(base, name) for name in LOADERS)
        for base in LINEAR
    )


@contextmanager
def arriving(layer: torch.nn.Module, param: Any, shards: Shards) -> Iterator[None]:
    """While a loader of ``layer`` loads these shards of ``param``, or all of it.  Raises
    ConfigError where all has come before."""
    arrivals: Arrivals | None = getattr(layer, "cpu_arrivals", None)
    if arrivals and arrivals.packed:
        _refuse(layer)
    yield
    if arrivals:
        arrivals.note(param, shards)


def _refuse(layer: torch.nn.Module, *_: Any) -> None:
    name = getattr(layer, "prefix", "") or getattr(layer, "layer_name", "a layer")
    raise ConfigError(
        f"The checkpoint has weights of {name} twice, and they may differ: leave one of each in "
        "its folder."
    )


def expect(model: torch.nn.Module, config: ModelConfig) -> None:
    """Have the layers of ``model`` packed as their weights come, from now on."""
    if config.runner_type == "draft":
        return
    owners = Counter(id(p) for layer in model.modules() for p in layer.parameters(recurse=False))
    for layer in model.modules():
        if _counts(layer):
            params = dict(layer.named_parameters(recurse=False))
            if isinstance(layer, RoutedExperts):  # it names its router's, too
                params = {name: p for name, p in params.items() if name.startswith(("w13_", "w2_"))}
            if params and all(owners[id(param)] == 1 for param in params.values()):
                layer.cpu_arrivals = Arrivals(layer, params)


def stand_ins(model: torch.nn.Module) -> set[str]:
    """Names of the parameters that packed layers have now."""
    return {
        f"{prefix}.{name}"
        for prefix, layer in model.named_modules()
        if getattr(layer, "cpu_arrivals", None) and layer.cpu_arrivals.packed
        for name, _ in layer.named_parameters(recurse=False)
    }


@contextmanager
def packed_once(model: torch.nn.Module) -> Iterator[None]:
    """The host's pass over all layers leaves out those which are packed."""
    arrivals = {layer: vars(layer).pop("cpu_arrivals", None) for layer in model.modules()}
    methods = []
    for layer, its in arrivals.items():
        if its and its.packed:
            method = layer.quant_method
            process = functools.partial(_unless, layer, method.process_weights_after_loading)
            method.process_weights_after_loading = process
            methods.append(method)
    try:
        yield
    finally:
        for method in methods:
            vars(method).pop("process_weights_after_loading", None)


def _unless(packed: torch.nn.Module, process: Load, layer: torch.nn.Module) -> None:
    if layer is not packed:
        process(layer)
