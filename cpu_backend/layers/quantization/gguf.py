"""GGUF files: linear layers packed from the file's own blocks, and the loader that hands them over.

A parameter keeps no copy: it notes which rows of the mapped file belong to this rank, and packing
reads them.  Shards of a merged layer may have different types; neighbours of one type are packed
together.  The embedding table is dequantized, because look-ups read single rows.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from vllm.config import ModelConfig
from vllm.config.load import LoadConfig
from vllm.model_executor.layers.linear import (
    LinearBase,
    LinearMethodBase,
    register_weight_loader_v2_supported_method,
)
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.parameter import BasevLLMParameter

from cpu_backend.errors import ConfigError
from cpu_backend.gguf import blocks
from cpu_backend.gguf.checkpoint import HEAD, TABLE, Checkpoint
from cpu_backend.gguf.folder import METHOD
from cpu_backend.gguf.reader import BlockType, GgufFile
from cpu_backend.layers.quantization.packing import OwnConfig, naming, weight_only_activations
from cpu_backend.ops import Codes, GroupScales, PackedLinear, QuantizedLinear


@functools.lru_cache(maxsize=1)
def opened(file: str) -> Checkpoint:
    """The checkpoint in a GGUF file, read once per process."""
    return Checkpoint(GgufFile(Path(file), vocabulary=False))


class CpuGgufConfig(OwnConfig):
    """``quantization_config`` of the folder that stands for a GGUF file: the file's path."""

    name = METHOD

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CpuGgufConfig:
        """From the folder's config.json."""
        return cls(config["file"])

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """Every linear layer and an output layer of its own."""
        if not isinstance(layer, (LinearBase, ParallelLMHead)):
            return None
        checkpoint = opened(self.file)
        if isinstance(layer, ParallelLMHead):
            if checkpoint.tied and not checkpoint.table.quantized:
                return None  # shares the table's packed weight
            name = TABLE if checkpoint.tied else HEAD
            return CpuGgufMethod([checkpoint.entries[name].info.kind], checkpoint.file.order)
        path, _, last = prefix.rpartition(".")
        shards = self.packed_modules_mapping.get(last, [last])
        names = [f"{path}.{shard}.weight" for shard in shards]
        kinds = [checkpoint.entries[name].info.kind for name in names]
        return CpuGgufMethod(kinds, checkpoint.file.order)


class BlocksParameter(BasevLLMParameter):
    """Rows of the mapped file, uint8 [rows, bytes], per shard; the tensor itself stays empty."""

    def __init__(self, kinds: list[BlockType], columns: int, weight_loader: Any) -> None:
        super().__init__(data=torch.empty(0, dtype=torch.uint8), weight_loader=weight_loader)
        self.shards: dict[int, torch.Tensor] = {}
        self._kinds, self._columns = kinds, columns

    def __new__(cls, kinds: list[BlockType], columns: int, weight_loader: Any) -> BlocksParameter:
        return super().__new__(cls, torch.empty(0, dtype=torch.uint8))

    def load_column_parallel_weight(self, loaded_weight: torch.Tensor) -> None:
        """This rank's share of the rows."""
        self.shards[0] = loaded_weight.chunk(self.tp_size)[self.tp_rank]

    def load_row_parallel_weight(self, loaded_weight: torch.Tensor) -> None:
        """This rank's share of the columns: whole blocks."""
        kind = self._kinds[0]
        width = self._columns // kind.elements * kind.nbytes
        self.shards[0] = loaded_weight.narrow(1, self.tp_rank * width, width)

    def load_merged_column_weight(self, loaded_weight: torch.Tensor, **kwargs: Any) -> None:
        """This rank's share of one of several merged layers."""
        size = kwargs["shard_size"]
        rows = loaded_weight.narrow(0, self.tp_rank * size, size)
        self.shards[kwargs["shard_id"]] = rows

    def load_qkv_weight(self, loaded_weight: torch.Tensor, **kwargs: Any) -> None:
        """This rank's heads; ``num_heads`` ranks share each key and value head."""
        shard, size = kwargs["shard_id"], kwargs["shard_size"]
        rank = self.tp_rank if shard == "q" else self.tp_rank // kwargs["num_heads"]
        self.shards["qkv".index(shard)] = loaded_weight.narrow(0, rank * size, size)


@register_weight_loader_v2_supported_method
class CpuGgufMethod(LinearMethodBase):
    """A linear or output layer; ``kinds``: the type of each of its shards in the file."""

    def __init__(self, kinds: list[BlockType], order: str) -> None:
        self._kinds, self._order = kinds, order

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
        block = max(kind.elements for kind in self._kinds)
        if input_size_per_partition % block:
            raise ConfigError(
                f"{getattr(layer, 'prefix', 'A layer')} cannot be cut into "
                f"{input_size // input_size_per_partition} parts of whole blocks of {block} "
                "channels: lower --tensor-parallel-size."
            )
        loader = extra_weight_attrs["weight_loader"]
        if isinstance(layer, VocabParallelEmbedding):
            loader = functools.partial(_load_vocabulary, layer)
        layer.register_parameter(
            "weight", BlocksParameter(self._kinds, input_size_per_partition, loader)
        )

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Pack: shards of one type that lie side by side become one weight."""
        shards = layer.weight.shards
        runs: list[tuple[BlockType, list[torch.Tensor]]] = []
        for index, kind in enumerate(self._kinds):
            if not runs or runs[-1][0] != kind:
                runs.append((kind, []))
            runs[-1][1].append(shards[index])
        pack = functools.partial(
            pack_blocks,
            order=self._order,
            dtype=self._dtype,
            # Logits stay in fp32: rounding them to 16 bits makes ties between likely tokens.
            float_output=isinstance(layer, VocabParallelEmbedding),
        )
        with naming(layer):
            self.packed = [
                pack(kind, rows[0] if len(rows) == 1 else torch.cat(rows)) for kind, rows in runs
            ]
        shards.clear()

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [..., in] to [..., out] in x's dtype."""
        if len(self.packed) == 1:
            return self.packed[0](x, None, bias)
        result = torch.cat([packed(x) for packed in self.packed], -1)
        return result if bias is None else result + bias

    def tie_weights(self, layer: torch.nn.Module, embed_tokens: torch.nn.Module) -> Any:
        """Not shared: the output layer is packed from the file's blocks."""
        del embed_tokens
        return layer


def _load_vocabulary(
    layer: VocabParallelEmbedding, param: BlocksParameter, loaded_weight: torch.Tensor
) -> None:
    """This rank's tokens; rows that only fill up are zero bytes, which are zero weights."""
    indices = layer.shard_indices
    rows = loaded_weight[indices.org_vocab_start_index : indices.org_vocab_end_index]
    missing = layer.num_embeddings_per_partition - rows.shape[0]
    param.shards[0] = torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows


def pack_blocks(
    kind: BlockType,
    raw: torch.Tensor,
    order: str = "<",
    dtype: torch.dtype = torch.bfloat16,
    float_output: bool = False,
) -> PackedLinear:
    """raw uint8 [rows, bytes] of any type as a packed weight; ``dtype``: of one that is not
    quantized.  Raises ValueError for scales that are not finite."""
    if not kind.quantized:
        return PackedLinear(blocks.dequantize(kind, raw, order, dtype), float_output)
    unpacked = blocks.unpack(kind, raw, order).narrowed()
    for table in (unpacked.scales, unpacked.offsets):
        if table is not None and not table.isfinite().all():
            raise ValueError("the file has scales of blocks that are not finite: fetch it again")
    offsets = None if unpacked.offsets is None else unpacked.offsets.t()
    middle = 2 ** (unpacked.bits - 1) - unpacked.middle if offsets is None else 0
    return QuantizedLinear(
        Codes(unpacked.codes, "bytes", unpacked.bits, middle),
        GroupScales(unpacked.scales.t(), unpacked.group, offsets, "offset"),
        unpacked.codes.shape[1],
        weight_only_activations(),
        float_output,
    )


class CpuGgufLoader(DefaultModelLoader):
    """Hands out a GGUF file's tensors: matrices as bytes, all others as numbers."""

    def __init__(self, load_config: LoadConfig) -> None:
        # A draft model beside it may be an ordinary checkpoint.
        super().__init__(replace(load_config, load_format="auto"))

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


def _weights(model_config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    checkpoint = opened(model_config.hf_config.quantization_config["file"])
    for name, entry in checkpoint.entries.items():
        if name == TABLE or len(entry.info.shape) == 1:
            yield name, checkpoint.values(entry, model_config.dtype)
        else:
            yield name, checkpoint.raw(entry)
    if checkpoint.tied and checkpoint.table.quantized:
        yield HEAD, checkpoint.raw(checkpoint.entries[TABLE])


@functools.cache
def register() -> None:
    """Make both the quantization and the load format known to the host."""
    register_quantization_config(METHOD)(CpuGgufConfig)
    register_model_loader(METHOD)(CpuGgufLoader)
