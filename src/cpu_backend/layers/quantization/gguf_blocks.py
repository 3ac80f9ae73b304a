"""Weights that are blocks of a GGUF file: the parameter that notes them, how they are packed."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from cpu_backend.errors import ConfigError
from cpu_backend.gguf import blocks
from cpu_backend.gguf.layouts import table_of
from cpu_backend.gguf.reader import BlockType
from cpu_backend.host.bases import BasevLLMParameter, VocabParallelEmbedding
from cpu_backend.layers.quantization.packing import weight_only_activations
from cpu_backend.ops import Codes, GroupScales, PackedLinear, QuantizedLinear


class BlocksParameter(BasevLLMParameter):
    """Rows of the mapped file, uint8 [rows, bytes], per shard; the tensor itself stays empty.

    kinds: of each shard; one for all where they are one tensor of the checkpoint.  order: of the
    columns, if the file has another; then whole rows are kept and ``chosen`` tells this rank's.
    rows: of this rank.
    """

    output_dim = 0  # of rows, by which the host cuts a tensor of several shards

    def __init__(
        self,
        kinds: list[BlockType],
        columns: int,
        weight_loader: Any,
        order: np.ndarray | None = None,
        rows: int = 0,
    ) -> None:
        super().__init__(data=torch.empty(0, dtype=torch.uint8), weight_loader=weight_loader)
        self.shards: dict[int, torch.Tensor] = {}
        self.chosen: torch.Tensor | None = None
        self._kinds, self._columns = kinds, columns
        self._order = None if order is None else torch.from_numpy(order)
        self._rows = rows

    def __new__(cls, *args: Any, **kwargs: Any) -> BlocksParameter:
        return super().__new__(cls, torch.empty(0, dtype=torch.uint8))

    @property
    def weight_loader(self) -> Any:
        """Of a layer, or of a model that cuts in its own way."""
        return self._weight_loader

    @weight_loader.setter
    def weight_loader(self, loader: Any) -> None:
        self._weight_loader = functools.partial(_load_copied, loader, self._rows)

    def load_column_parallel_weight(self, loaded_weight: torch.Tensor) -> None:
        """This rank's share of the rows."""
        self.shards[0] = loaded_weight.chunk(self.tp_size)[self.tp_rank]

    def load_row_parallel_weight(self, loaded_weight: torch.Tensor) -> None:
        """This rank's share of the columns: whole blocks."""
        if self._order is not None:
            self.shards[0] = loaded_weight
            self.chosen = self._order.narrow(0, self.tp_rank * self._columns, self._columns)
            return
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


class SideBySide:
    """Weights of several types, one under the other."""

    def __init__(self, weights: list[PackedLinear]) -> None:
        self._weights = weights

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [..., in] to [..., out] in x's dtype; ``weight`` is not read."""
        result = torch.cat([packed(x) for packed in self._weights], -1)
        return result if bias is None else result + bias


def load_whole(param: BlocksParameter, loaded_weight: torch.Tensor) -> None:
    """Of a layer that every rank has."""
    param.shards[0] = loaded_weight


def _load_copied(
    loader: Any, rows: int, param: BlocksParameter, loaded_weight: torch.Tensor
) -> None:
    """What a model's own loader writes into a tensor of ``rows``."""
    copied = torch.nn.Parameter(loaded_weight.new_zeros(rows, loaded_weight.shape[1]), False)
    loader(copied, loaded_weight)
    param.shards[0] = copied.data


def load_vocabulary(
    layer: VocabParallelEmbedding, param: BlocksParameter, loaded_weight: torch.Tensor
) -> None:
    """This rank's tokens; rows that only fill up are zero bytes, which are zero weights."""
    indices = layer.shard_indices
    rows = loaded_weight[indices.org_vocab_start_index : indices.org_vocab_end_index]
    missing = layer.num_embeddings_per_partition - rows.shape[0]
    param.shards[0] = torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows


def check_cut(layer: str, kind: BlockType, columns: int, ranks: int) -> None:
    """Raises ConfigError where a rank's columns would begin or end within a block."""
    if columns % kind.elements:
        raise ConfigError(
            f"{layer} cannot be cut into {ranks} parts of whole blocks of {kind.elements} "
            "channels: lower --tensor-parallel-size."
        )


def pack_blocks(
    kind: BlockType,
    raw: torch.Tensor,
    order: str = "<",
    dtype: torch.dtype = torch.bfloat16,
    float_output: bool = False,
    parts: int = 1,
    columns: torch.Tensor | None = None,
) -> PackedLinear:
    """raw uint8 [rows, bytes] of any type as a packed weight; ``dtype``: of one that is not
    quantized; columns: those to take, if not all.  Raises ValueError for scales that are not
    finite."""
    if not kind.quantized:
        numbers = blocks.dequantize(kind, raw, order, dtype)
        numbers = numbers if columns is None else numbers[:, columns]
        return PackedLinear(numbers, float_output, parts)
    unpacked = blocks.unpack(kind, raw, order)
    unpacked = (unpacked if columns is None else unpacked.taken(columns)).narrowed()
    for table in (unpacked.scales, unpacked.offsets):
        if table is not None and not table.isfinite().all():
            raise ValueError("the file has scales of blocks that are not finite: fetch it again")
    offsets = None if unpacked.offsets is None else unpacked.offsets.t()
    bits, middle, chosen = unpacked.bits, unpacked.middle, unpacked.table
    plain = offsets is None and chosen is None
    add = 2 ** (bits - 1) - middle if plain else 0
    if add > 0 and int(unpacked.codes.max()) + add >= 2**bits:
        # Ternary codes of 2 bits that say 2: nothing writes such, but a file may have them.
        add, chosen = 0, table_of([code - middle for code in range(2**bits)])
    codes = Codes(unpacked.codes, "bytes", bits, add, chosen)
    return QuantizedLinear(
        codes,
        GroupScales(unpacked.scales.t(), unpacked.group, offsets, "offset"),
        unpacked.codes.shape[1],
        weight_only_activations(),
        parts,
        float_output,
    )
