"""GGUF files: linear layers and experts packed from the file's own blocks, and the loader.

A parameter keeps no copy: it notes which rows of the mapped file belong to this rank, and packing
reads them.  Shards of a merged layer may have different types; neighbours of one type are packed
together.  The embedding table is dequantized, because look-ups read single rows.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpu_backend.errors import ConfigError
from cpu_backend.gguf import blocks
from cpu_backend.gguf.checkpoint import Checkpoint, Entry
from cpu_backend.gguf.folder import METHOD
from cpu_backend.gguf.reader import BlockType, GgufFile
from cpu_backend.host.bases import (
    BasevLLMParameter,
    DefaultModelLoader,
    FusedMoEConfig,
    LinearBase,
    LinearMethodBase,
    LoadConfig,
    ModelConfig,
    ParallelLMHead,
    QuantizeMethodBase,
    RoutedExperts,
    UnquantizedFusedMoEMethod,
    UnquantizedLinearMethod,
    VocabParallelEmbedding,
    register_model_loader,
    register_quantization_config,
    register_weight_loader_v2_supported_method,
)
from cpu_backend.layers.experts import ExpertsMethod
from cpu_backend.layers.linear import parts_of
from cpu_backend.layers.quantization.packing import (
    OwnConfig,
    naming,
    run,
    weight_only_activations,
)
from cpu_backend.ops import Codes, GroupScales, PackedLinear, QuantizedLinear

# Of the host's classes that do not say what they merge.
MERGED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


@functools.lru_cache(maxsize=1)
def opened(file: str) -> Checkpoint:
    """The checkpoint in a GGUF file, read once per process."""
    return Checkpoint(GgufFile(Path(file), vocabulary=False))


def _experts_of(checkpoint: Checkpoint, prefix: str) -> list[Entry]:
    """The three tensors of a layer's experts; some classes of the host give their mixture another
    name than its weights have."""
    named = {n: e for n, e in checkpoint.entries.items() if e.info.name.endswith("_exps.weight")}
    layer = re.match(r".*?\.\d+\.", prefix)
    starts = [prefix + ".", layer[0] if layer else prefix]
    found = [[e for name, e in named.items() if name.startswith(start)] for start in starts]
    return found[0] or found[1]


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
        """Linear layers, experts, and an output layer of its own."""
        if not isinstance(layer, (LinearBase, ParallelLMHead, RoutedExperts)):
            return None
        checkpoint = opened(self.file)
        if isinstance(layer, RoutedExperts):
            entries = _experts_of(checkpoint, prefix)
            return CpuGgufExpertsMethod(layer.moe_config, entries, checkpoint.file.order)
        if isinstance(layer, ParallelLMHead):
            if checkpoint.tied and not checkpoint.packs_table:
                return None  # shares the table's packed weight
            name = checkpoint.table if checkpoint.tied else checkpoint.head
            return CpuGgufMethod([checkpoint.entries[name].kind], checkpoint.file.order)
        path, _, last = prefix.rpartition(".")
        if not path:  # a layer of which the host does not say which it is
            return UnquantizedLinearMethod()
        shards = self.packed_modules_mapping.get(last, [last])
        fused = f"{checkpoint.architecture.checkpoint_name(prefix)}.weight"
        if shards == [last] and fused not in checkpoint.entries:
            shards = MERGED.get(last, shards)
        entries = [checkpoint.of_module(f"{path}.{shard}") for shard in shards]
        if any(entry.as_numbers for entry in entries):
            return UnquantizedLinearMethod()
        return CpuGgufMethod(
            [entry.kind for entry in entries],
            checkpoint.file.order,
            [entry.shape[0] for entry in entries],
            entries[0].columns,
        )


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
                kind = replace(kind, elements=blocks.LARGEST_GROUP)
            check_cut(name, kind, input_size_per_partition, input_size // input_size_per_partition)
        loader = extra_weight_attrs["weight_loader"]
        if isinstance(layer, VocabParallelEmbedding):
            loader = functools.partial(_load_vocabulary, layer)
        elif not hasattr(layer, "weight_loader_v2"):  # of layers that every rank has whole
            loader = _load_whole
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


def check_cut(layer: str, kind: BlockType, columns: int, ranks: int) -> None:
    """Raises ConfigError where a rank's columns would begin or end within a block."""
    if columns % kind.elements:
        raise ConfigError(
            f"{layer} cannot be cut into {ranks} parts of whole blocks of {kind.elements} "
            "channels: lower --tensor-parallel-size."
        )


class ExpertBlocks(torch.nn.Parameter):
    """As BlocksParameter, per expert and shard ("w1", "w2", "w3").

    shard: which one it is where a host's class has all experts of a tensor loaded at once.
    """

    def __new__(cls, layer: RoutedExperts, w2: BlockType | None, shard: str = "") -> ExpertBlocks:
        return super().__new__(cls, torch.empty(0, dtype=torch.uint8), requires_grad=False)

    def __init__(self, layer: RoutedExperts, w2: BlockType | None, shard: str = "") -> None:
        self.shards: dict[tuple[int, str], torch.Tensor] = {}
        self._layer, self._w2, self._shard = layer, w2, shard

    def weight_loader(
        self,
        param: ExpertBlocks,
        loaded_weight: torch.Tensor,
        weight_name: str = "",
        shard_id: str = "",
        expert_id: int = -1,
        return_success: bool = False,
    ) -> bool:
        """This rank's share of an expert, or of all, if it has one: rows, or columns of w2; of w2's
        bias, which is added once, the first rank has all."""
        del weight_name, return_success
        if self._shard and not shard_id:
            for expert, weight in enumerate(loaded_weight):
                self.weight_loader(param, weight, "", self._shard, expert)
            return True
        moe = self._layer.moe_config
        expert = self._layer._map_global_expert_id_to_local_expert_id(expert_id)
        if expert == -1:
            return False
        size, dim = moe.intermediate_size_per_partition, 0
        if shard_id == "w2" and self._w2 is None:
            share = loaded_weight if moe.tp_rank == 0 else torch.zeros_like(loaded_weight)
            self.shards[expert, shard_id] = share
            return True
        if shard_id == "w2" and self._w2 is not None:
            size, dim = size // self._w2.elements * self._w2.nbytes, 1
        self.shards[expert, shard_id] = loaded_weight.narrow(dim, moe.tp_rank * size, size)
        return True


# The parameters of experts with biases, whose class loads all of them at once.
WHOLE = {"gate": "w1", "up": "w3", "down": "w2"}


class CpuGgufExpertsMethod(ExpertsMethod, UnquantizedFusedMoEMethod):
    """A mixture of experts; ``entries``: its tensors in the file, three or with biases six."""

    in_turns = False

    def __init__(self, moe: FusedMoEConfig, entries: list[Entry], order: str) -> None:
        super().__init__(moe)
        self._order = order
        self._kinds = {
            "w2" if "ffn_down" in entry.info.name else "w13": entry.kind
            for entry in entries
            if entry.info.name.endswith("exps.weight")
        }

    def create_weights(
        self,
        layer: torch.nn.Module,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Parameters without content."""
        self._dtype, w2 = params_dtype, self._kinds["w2"]
        check_cut(layer.layer_name, w2, intermediate_size_per_partition, self.moe.tp_size)
        if self.moe.has_bias:
            for name, shard in WHOLE.items():
                layer.register_parameter(f"{name}_weight", ExpertBlocks(layer, w2, shard))
                layer.register_parameter(f"{name}_bias", ExpertBlocks(layer, None, shard))
        else:
            for name in ("w13_weight", "w2_weight"):
                layer.register_parameter(name, ExpertBlocks(layer, w2))

    def packed(self, layer: RoutedExperts, name: str, expert: int, parts: int) -> PackedLinear:
        """From the file's blocks."""
        shards = self._shards(layer, name, expert, "weight")
        rows = shards[0] if len(shards) == 1 else torch.cat(shards)
        return pack_blocks(self._kinds[name], rows, self._order, self._dtype, parts=parts)

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        """Pack; biases become those that the host knows."""
        if self.moe.has_bias:
            for name in ("w13", "w2"):
                biases = [
                    torch.cat(self._shards(layer, name, expert, "bias"))
                    for expert in range(layer.local_num_experts)
                ]
                bias = torch.nn.Parameter(torch.stack(biases), requires_grad=False)
                layer.register_parameter(f"{name}_bias", bias)
        super().process_weights_after_loading(layer)
        if self.moe.has_bias:
            for name in WHOLE:
                setattr(layer, f"{name}_weight", None)
                setattr(layer, f"{name}_bias", None)

    def _shards(
        self, layer: RoutedExperts, name: str, expert: int, kind: str
    ) -> list[torch.Tensor]:
        """Of "w13" or "w2"; kind: "weight" or "bias"."""
        wanted = ("w2",) if name == "w2" else ("w1", "w3")[: self.halves]
        if not self.moe.has_bias:
            return [getattr(layer, f"{name}_{kind}").shards[expert, shard] for shard in wanted]
        whole = {shard: getattr(layer, f"{part}_{kind}").shards for part, shard in WHOLE.items()}
        return [whole[shard][expert, shard] for shard in wanted]


def _load_whole(param: BlocksParameter, loaded_weight: torch.Tensor) -> None:
    """Of a layer that every rank has."""
    param.shards[0] = loaded_weight


def _load_copied(
    loader: Any, rows: int, param: BlocksParameter, loaded_weight: torch.Tensor
) -> None:
    """What a model's own loader writes into a tensor of ``rows``."""
    copied = torch.nn.Parameter(loaded_weight.new_zeros(rows, loaded_weight.shape[1]), False)
    loader(copied, loaded_weight)
    param.shards[0] = copied.data


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
    if unpacked.e2m1:
        codes = Codes(unpacked.pairs().view(torch.float4_e2m1fn_x2), "pairs_of_k", 4)
    else:
        middle = 2 ** (unpacked.bits - 1) - unpacked.middle if offsets is None else 0
        codes = Codes(unpacked.codes, "bytes", unpacked.bits, middle)
    return QuantizedLinear(
        codes,
        GroupScales(unpacked.scales.t(), unpacked.group, offsets, "offset"),
        unpacked.codes.shape[1],
        weight_only_activations(),
        parts,
        float_output,
    )


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
    checkpoint = opened(model_config.hf_config.quantization_config["file"])
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
    register_quantization_config(METHOD)(CpuGgufConfig)
    register_model_loader(METHOD)(CpuGgufLoader)
