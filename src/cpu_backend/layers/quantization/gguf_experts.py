"""Mixtures of experts packed from the blocks of a GGUF file."""

from __future__ import annotations

import re
from typing import Any

import torch

from cpu_backend.gguf.checkpoint import Checkpoint
from cpu_backend.gguf.reader import BlockType
from cpu_backend.gguf.weights import Entry
from cpu_backend.host.bases import FusedMoEConfig, RoutedExperts, UnquantizedFusedMoEMethod
from cpu_backend.layers.experts import ExpertsMethod
from cpu_backend.layers.quantization.gguf_blocks import check_cut, pack_blocks
from cpu_backend.ops import PackedLinear


def experts_of(checkpoint: Checkpoint, prefix: str) -> list[Entry]:
    """The three tensors of a layer's experts; some classes of the host give their mixture another
    name than its weights have."""
    named = {n: e for n, e in checkpoint.entries.items() if e.info.name.endswith("_exps.weight")}
    layer = re.match(r".*?\.\d+\.", prefix)
    starts = [prefix + ".", layer[0] if layer else prefix]
    found = [[e for name, e in named.items() if name.startswith(start)] for start in starts]
    return found[0] or found[1]


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
