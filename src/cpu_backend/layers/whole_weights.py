"""Weights of the checkpoint are loaded whole and as what they are, or not at all.

The host's linear layers take of a larger weight what fits, and its experts fill what a smaller one
does: with another model's config.json the engine starts, and answers nonsense.  Before a layer
loads a weight that is not quantized, its shape in the file is held against the layer's.

Nor does it mind whether a layer that its config.json calls quantized has codes in the file: numbers
are cut to integers, codes taken for numbers without their scales.  It does not miss what linear
layers, experts and heads have not been given, whose memory then holds anything.  And many of its
classes pass over a bias that they have no place for, as if the model had none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from cpu_backend.errors import ConfigError
from cpu_backend.host.bases import (
    LinearBase,
    MergedColumnParallelLinear,
    ModelConfig,
    ParallelLMHead,
    QKVParallelLinear,
    RoutedExperts,
    UnquantizedEmbeddingMethod,
    UnquantizedFusedMoEMethod,
    UnquantizedLinearMethod,
    VocabParallelEmbedding,
)

# Parameters without which a layer is none: not those of activations and caches, which may have
# defaults.
ESSENTIAL = re.compile(r"(^|_)(q?weight|weight_packed|weight_scale(_inv)?|scales)$")
WAY_OUT = (
    ": correct its quantization_config, which names what is not quantized, or download both again"
)


def compare_linear(layer: Any, param: Any, weight: torch.Tensor, shard: Any) -> None:
    """Raise ConfigError for what is not a linear layer's ``param``, or that shard of it."""
    unquantized = isinstance(layer.quant_method, UnquantizedLinearMethod)
    if unquantized and not getattr(param, "is_sharded_weight", False):
        size = _out_features(layer, shard)
        if size is not None:
            _compare(layer.prefix, weight, (size, layer.input_size)[: param.dim()])
    if param is getattr(layer, "weight", None):
        _compare_kinds(layer.prefix, param, weight)


def _out_features(layer: Any, shard: Any) -> int | None:
    """Of the whole layer, on all ranks, or of a shard of it, or of several; None if not known."""
    sizes: dict[Any, int]
    if isinstance(layer, QKVParallelLinear):
        keys = layer.total_num_kv_heads
        sizes = {
            "q": layer.total_num_heads * layer.head_size,
            "k": keys * layer.head_size,
            "v": keys * layer.v_head_size,
        }
    elif isinstance(layer, MergedColumnParallelLinear):
        sizes = dict(enumerate(layer.output_sizes))
        if hasattr(layer, "replicated_shard_id"):  # Kimi's, which counts it once for each rank
            sizes[layer.replicated_shard_id] //= layer.tp_size
    else:
        return int(layer.output_size)
    shards = sizes if shard is None else shard if isinstance(shard, tuple) else (shard,)
    return sum(sizes[s] for s in shards) if sizes.keys() >= set(shards) else None


def compare_embedding(layer: Any, param: Any, weight: torch.Tensor) -> None:
    """The same of embeddings and heads, whose rows are the vocabulary."""
    if isinstance(layer.quant_method, UnquantizedEmbeddingMethod) and param.dim() == 2:
        _compare("the vocabulary", weight, (layer.org_vocab_size, layer.embedding_dim))
    if param is getattr(layer, "weight", None):
        _compare_kinds("the vocabulary", param, weight)


def compare_experts(layer: Any, param: Any, weight: torch.Tensor, name: str, shard: str) -> None:
    """The same of experts: ``name`` is the weight's in the checkpoint."""
    if isinstance(layer.quant_method, UnquantizedFusedMoEMethod) and param.dim() == 3:
        moe = layer.moe_config
        shape = (moe.intermediate_size, moe.hidden_dim_unpadded)
        _compare(name, weight, shape[::-1] if shard == "w2" else shape)
    if any(param is getattr(layer, own, None) for own in ("w13_weight", "w2_weight")):
        _compare_kinds(name, param, weight)


class Watched(torch.Tensor):
    """A tensor of the checkpoint that adds its ``kind`` to ``taken`` when anybody looks at it."""

    kind: str
    taken: set[str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in args:
            for tensor in value if isinstance(value, list | tuple) else (value,):
                if isinstance(tensor, Watched):
                    tensor.taken.add(tensor.kind)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs or {})


class Biases:
    """Those of a checkpoint that is being read, and whether a layer takes them; those of zeros
    alone, as quantizers write them, make no difference."""

    def __init__(self) -> None:
        self._taken: dict[str, set[str]] = {}  # of each layer that has one; no tensor is kept

    def watch(self, weights: Iterator[tuple[str, torch.Tensor]]) -> Iterator[Any]:
        """The same pairs of names and tensors.  A file has the bias of a layer before the rest."""
        for name, tensor in weights:
            layer, _, kind = name.rpartition(".")
            if kind == "bias" and tensor.any():
                self._taken[layer] = set()
            if layer in self._taken:
                tensor = tensor.as_subclass(Watched)
                tensor.kind, tensor.taken = kind, self._taken[layer]
            yield name, tensor

    def check(self, model: torch.nn.Module) -> None:
        """Raise ConfigError where ``model`` has taken what a layer has beside its bias, but not
        the bias."""
        left = [layer for layer, kinds in self._taken.items() if kinds and "bias" not in kinds]
        if left:
            raise ConfigError(
                f"The host's {type(model).__name__} has no place for {left[0]}.bias, one of "
                f"{len(left)} such biases of the checkpoint, and would answer wrongly without "
                "them: choose another model."
            )


def without_biases(model: torch.nn.Module) -> None:
    """Every layer that the host gives a bias adds nothing, until the checkpoint has one for it:
    the host's memory for it holds anything."""
    for module in model.modules():
        if isinstance(module, LinearBase | VocabParallelEmbedding):
            bias = getattr(module, "bias", None)
            if isinstance(bias, torch.nn.Parameter):
                bias.data.zero_()


def check_loaded(model: torch.nn.Module, loaded: set[str], config: ModelConfig) -> None:
    """Raise ConfigError where a layer has parameters that are not among those ``loaded``; a draft
    model may have its table and head from the other one, and one that pools needs no head."""
    tables = {"draft": VocabParallelEmbedding, "pooling": ParallelLMHead}.get(config.runner_type)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    known = {id(parameters[name]) for name in loaded if name in parameters}  # shared ones too
    missing = [
        f"{name}.{parameter_name}"
        for name, module in model.named_modules()
        if isinstance(module, (LinearBase, RoutedExperts, VocabParallelEmbedding))
        if not (tables and isinstance(module, tables))
        if not getattr(module.quant_method, "uses_meta_device", False)
        for parameter_name, parameter in module.named_parameters(recurse=False)
        if ESSENTIAL.search(parameter_name) and parameter.numel() and id(parameter) not in known
    ]
    if missing == ["lm_head.weight"] and config.hf_text_config.tie_word_embeddings:
        raise ConfigError(
            f"The host's {type(model).__name__} has a head of its own, and tie_word_embeddings in "
            "this one's config.json says that it is the table of tokens: choose another model."
        )
    if missing:
        raise ConfigError(
            f"The checkpoint has nothing for {missing[0]}, one of {len(missing)} such weights that "
            f"its config.json asks for{WAY_OUT}."
        )


def _compare(name: str, weight: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise ConfigError for a matrix or bias of another shape."""
    if weight.dim() == len(shape) and tuple(weight.shape) != shape:
        kind = "bias" if len(shape) == 1 else "weight"
        raise ConfigError(
            f"A {kind} for {name} has shape {list(weight.shape)} in the checkpoint, and its "
            f"config.json makes it {list(shape)}: they are of two models, so download both again."
        )


def _compare_kinds(name: str, param: torch.Tensor, weight: torch.Tensor) -> None:
    """Raise ConfigError for numbers where codes belong, or codes where numbers do."""
    if _is_number(param.dtype) != _is_number(weight.dtype):
        raise ConfigError(
            f"A weight for {name} is of {_word(weight.dtype)} in the checkpoint, and its "
            f"config.json makes it {_word(param.dtype)}{WAY_OUT}."
        )


def _is_number(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize > 1


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
