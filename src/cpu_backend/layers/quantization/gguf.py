"""GGUF files: the quantization config, linear layers packed from the file's blocks, the loader.

A parameter keeps no copy: it notes which rows of the mapped file belong to this rank, and packing
reads them.  Shards of a merged layer may have different types; neighbours of one type are packed
together.  The embedding table is dequantized, because look-ups read single rows.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpu_backend.gguf import blocks, configs
from cpu_backend.gguf.checkpoint import Checkpoint, Pictures
from cpu_backend.gguf.folder import METHOD
from cpu_backend.gguf.reader import BlockType, GgufFile
from cpu_backend.host.bases import (
    DefaultModelLoader,
    LinearBase,
    LinearMethodBase,
    LoadConfig,
    ModelConfig,
    ParallelLMHead,
    QuantizeMethodBase,
    RoutedExperts,
    UnquantizedLinearMethod,
    VocabParallelEmbedding,
    register_model_loader,
    register_quantization_config,
    register_weight_loader_v2_supported_method,
)
from cpu_backend.layers.linear import parts_of
from cpu_backend.layers.quantization.gguf_blocks import (
    BlocksParameter,
    SideBySide,
    check_cut,
    load_vocabulary,
    load_whole,
    pack_blocks,
)
from cpu_backend.layers.quantization.gguf_experts import CpuGgufExpertsMethod, experts_of
from cpu_backend.layers.quantization.packing import OwnConfig, naming, run, shards_of


@functools.lru_cache(maxsize=1)
def opened(file: str) -> Checkpoint:
    """The checkpoint in a GGUF file, read once per process."""
    return Checkpoint(GgufFile(Path(file), vocabulary=False))


@functools.lru_cache(maxsize=1)
def pictures_of(file: str, text: str) -> Pictures:
    """What reads pictures for the checkpoint ``text``."""
    return Pictures(GgufFile(Path(file)), opened(text))


class CpuGgufConfig(OwnConfig):
    """``quantization_config`` of the folder that stands for a GGUF file: the file's path, and that
    of the one by which it reads pictures."""

    name = METHOD

    def __init__(self, file: str, pictures: str = "") -> None:
        super().__init__()
        self.file, self.pictures = file, pictures

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CpuGgufConfig:
        """From the folder's config.json."""
        return cls(config["file"], config.get("pictures", ""))

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """Linear layers, experts, and an output layer of its own."""
        if not isinstance(layer, (LinearBase, ParallelLMHead, RoutedExperts)):
            return None
        checkpoint = opened(self.file)
        if isinstance(layer, ParallelLMHead):
            if checkpoint.tied and not checkpoint.packs_table:
                return None  # shares the table's packed weight
            name = checkpoint.table if checkpoint.tied else checkpoint.head
            return CpuGgufMethod([checkpoint.entries[name].kind], checkpoint.file.order)
        if self.pictures:
            prefix = pictures_of(self.pictures, self.file).projector.module_of_text(prefix)
            if not prefix:
                return UnquantizedLinearMethod()
        if isinstance(layer, RoutedExperts):
            entries = experts_of(checkpoint, prefix)
            return CpuGgufExpertsMethod(layer.moe_config, entries, checkpoint.file.order)
        path, _, last = prefix.rpartition(".")
        if not path:  # a layer of which the host does not say which it is
            return UnquantizedLinearMethod()
        fused = f"{checkpoint.architecture.checkpoint_name(prefix)}.weight"
        shards = shards_of(last, self.packed_modules_mapping, fused in checkpoint.entries)
        entries = [checkpoint.of_module(f"{path}.{shard}") for shard in shards]
        if any(entry.as_numbers for entry in entries):
            return UnquantizedLinearMethod()
        return CpuGgufMethod(
            [entry.kind for entry in entries],
            checkpoint.file.order,
            [entry.shape[0] for entry in entries],
            entries[0].columns,
        )


@register_weight_loader_v2_supported_method
class CpuGgufMethod(LinearMethodBase):
    """A linear or output layer; ``kinds``: the type of each of its tensors in the file, of
    ``rows`` rows; columns: the order of those, if it is not the file's."""

    def __init__(
        self,
        kinds: list[BlockType],
        order: str,
        rows: Sequence[int] = (),
        columns: np.ndarray | None = None,
    ) -> None:
        self._kinds, self._order = kinds, order
        self._rows, self._columns = rows, columns

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """One parameter without content."""
        self._dtype = params_dtype
        name = getattr(layer, "prefix", "A layer")
        if 1 < len(self._kinds) < len(output_partition_sizes):
            self._kinds = self._kinds_of(output_partition_sizes)
        for kind in self._kinds:
            if self._columns is not None and kind.quantized:  # moved by groups of columns
                kind = replace(kind, elements=blocks.columns_together(kind))
            check_cut(name, kind, input_size_per_partition, input_size // input_size_per_partition)
        loader = extra_weight_attrs["weight_loader"]
        if isinstance(layer, VocabParallelEmbedding):
            loader = functools.partial(load_vocabulary, layer)
        elif not hasattr(layer, "weight_loader_v2"):  # of layers that every rank has whole
            loader = load_whole
        layer.register_parameter(
            "weight",
            BlocksParameter(
                self._kinds,
                input_size_per_partition,
                loader,
                self._columns,
                sum(output_partition_sizes),
            ),
        )

    def _kinds_of(self, sizes: list[int]) -> list[BlockType]:
        """The type of each shard where several shards are one tensor."""
        ranks = sum(self._rows) // sum(sizes)
        ends, kinds, end = list(itertools.accumulate(self._rows)), [], 0
        for size in sizes:
            end += size * ranks
            kinds.append(self._kinds[bisect.bisect_left(ends, end)])
        return kinds

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Pack: shards of one type that lie side by side become one weight."""
        if not isinstance(layer.weight, BlocksParameter):
            return  # the output layer of a model that embeds, which the host has emptied
        shards = layer.weight.shards
        runs: list[tuple[BlockType, list[torch.Tensor]]] = []
        kinds = self._kinds * len(shards) if len(self._kinds) == 1 else self._kinds
        for index, kind in enumerate(kinds):
            if not runs or runs[-1][0] != kind:
                runs.append((kind, []))
            runs[-1][1].append(shards[index])
        pack = functools.partial(
            pack_blocks,
            order=self._order,
            dtype=self._dtype,
            # Logits stay in fp32: rounding them to 16 bits makes ties between likely tokens.
            float_output=isinstance(layer, VocabParallelEmbedding),
            parts=parts_of(layer) if len(runs) == 1 else 1,
            columns=layer.weight.chosen,
        )
        with naming(layer):
            packed = [
                pack(kind, rows[0] if len(rows) == 1 else torch.cat(rows)) for kind, rows in runs
            ]
        layer.cpu_linear = packed[0] if len(packed) == 1 else SideBySide(packed)
        shards.clear()

    apply = staticmethod(run)

    def tie_weights(self, layer: torch.nn.Module, embed_tokens: torch.nn.Module) -> Any:
        """Not shared: the output layer is packed from the file's blocks."""
        del embed_tokens
        return layer


class CpuGgufLoader(DefaultModelLoader):
    """Hands out a GGUF file's tensors: matrices as bytes, all others as numbers."""

    def __init__(self, load_config: LoadConfig) -> None:
        # A draft model beside it may be an ordinary checkpoint.
        super().__init__(replace(load_config, load_format="auto"))
        self.enable_weights_track = True  # a parameter without a weight is an error

    def download_model(self, model_config: ModelConfig) -> None:
        """Nothing to do for a file."""
        if model_config.quantization != METHOD:
            super().download_model(model_config)

    def get_all_weights(
        self, model_config: ModelConfig, model: torch.nn.Module
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Tensors under their Hugging Face names."""
        if model_config.quantization != METHOD:
            return super().get_all_weights(model_config, model)
        self.counter_before_loading_weights = time.perf_counter()
        return _weights(model_config)

    def track_weights_loading(
        self, model: torch.nn.Module, loaded_weights: set[str] | None, **options: bool
    ) -> None:
        """By all names of a parameter: routers have two in some of the host's classes."""
        if loaded_weights is not None:
            named = dict(model.named_parameters(remove_duplicate=False))
            found = {id(named[name]) for name in loaded_weights & named.keys()}
            loaded_weights |= {name for name, weight in named.items() if id(weight) in found}
        super().track_weights_loading(model, loaded_weights, **options)


def _weights(model_config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    files = model_config.hf_config.quantization_config
    text = _weights_of_text(opened(files["file"]), model_config)
    if not files.get("pictures"):
        yield from text
        return
    pictures = pictures_of(files["pictures"], files["file"])
    for name, entry in pictures.entries.items():
        yield name, pictures.values(entry)
    for name, shape in pictures.projector.unused_weights().items():
        yield name, torch.zeros(shape)
    for name, tensor in text:
        yield pictures.projector.weight_of_text(name), tensor


def _weights_of_text(
    checkpoint: Checkpoint, model_config: ModelConfig
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, entry in checkpoint.entries.items():
        numbers = name == checkpoint.table or entry.as_numbers
        # What is computed with in fp32 keeps that; the host rounds what is not.
        dtype = model_config.dtype if name == checkpoint.table else torch.float32
        tensor = checkpoint.values(entry, dtype) if numbers else checkpoint.raw(entry)
        if "{}" in name:
            for number, part in enumerate(tensor):
                yield name.format(number), part
        else:
            yield name, tensor
    for name, values in checkpoint.architecture.constants().items():
        yield name, torch.from_numpy(values)
    if checkpoint.packs_table:
        yield checkpoint.head, checkpoint.raw(checkpoint.entries[checkpoint.table])


@functools.cache
def register() -> None:
    """Make both the quantization and the load format known to the host."""
    configs.register()
    register_quantization_config(METHOD)(CpuGgufConfig)
    register_model_loader(METHOD)(CpuGgufLoader)
