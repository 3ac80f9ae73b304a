"""Layers packed from GGUF blocks: shards of ranks, merged layers of several types, vocabularies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor import parameter

from cpu_backend.errors import ConfigError
from cpu_backend.gguf import blocks
from cpu_backend.gguf.reader import BLOCK_TYPES, BlockType
from cpu_backend.host.bases import MergedColumnParallelLinear
from cpu_backend.layers.quantization import gguf_blocks
from cpu_backend.layers.quantization.gguf import CpuGgufMethod
from tests.ops.test_gguf_blocks import random_blocks, reference
from tests.ops.test_quant_linear import assert_as_good_as_bf16

KINDS = {kind.name: kind for kind in BLOCK_TYPES.values()}
RANKS = 2


@pytest.fixture(params=range(RANKS))
def rank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(parameter, "get_tensor_model_parallel_rank", lambda: request.param)
    monkeypatch.setattr(parameter, "get_tensor_model_parallel_world_size", lambda: RANKS)
    return int(request.param)


class GateAndUp(MergedColumnParallelLinear):
    """The host's layer without its distributed state."""

    def __init__(self, sizes: list[int]) -> None:
        torch.nn.Module.__init__(self)
        self.output_partition_sizes = sizes


def made(kinds: list[BlockType], columns: int, rows: list[int]) -> tuple[Any, Any]:
    """A method and a layer with its parameter."""
    layer: Any = GateAndUp(rows) if len(rows) == 2 else torch.nn.Module()
    layer.prefix = "model.layers.3.mlp.down_proj"
    method = CpuGgufMethod(kinds, "<")
    method.create_weights(
        layer,
        columns // RANKS if len(rows) == 1 else columns,
        rows,
        columns,
        sum(rows),
        torch.bfloat16,
        weight_loader=lambda: None,
    )
    return method, layer


def product(method: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    method.process_weights_after_loading(layer)
    assert not layer.weight.shards
    result: torch.Tensor = method.apply(layer, x, bias)
    return result


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "F16", "Q2_K", "NVFP4"])
def test_a_row_parallel_layer_takes_its_blocks(
    name: str, rank: int, seeded: torch.Generator
) -> None:
    raw = random_blocks(KINDS[name], 40, 1024)
    method, layer = made([KINDS[name]], 1024, [40])
    layer.weight.load_row_parallel_weight(raw)
    weight = reference(KINDS[name], raw).double()[:, rank * 512 : rank * 512 + 512]
    x, bias = (torch.randn(s, generator=seeded).bfloat16() for s in ((3, 512), (40,)))
    assert_as_good_as_bf16(product(method, layer, x, bias), x, weight, bias)


def test_heads_of_a_rank_in_a_layer_of_three_types(rank: int, seeded: torch.Generator) -> None:
    kinds = [KINDS["Q4_K"], KINDS["Q4_K"], KINDS["Q6_K"]]
    sizes = {"q": 64, "k": 32, "v": 32}  # all keys and values on every rank
    raw = {
        shard: random_blocks(kind, rows * (RANKS if shard == "q" else 1), 256)
        for (shard, rows), kind in zip(sizes.items(), kinds, strict=True)
    }
    method, layer = made(kinds, 256, list(sizes.values()))
    weights = []
    for (shard, rows), kind in zip(sizes.items(), kinds, strict=True):
        layer.weight.load_qkv_weight(
            raw[shard], shard_id=shard, shard_size=rows, shard_offset=0, num_heads=RANKS
        )
        first = rank * rows if shard == "q" else 0
        weights.append(reference(kind, raw[shard])[first : first + rows])
    x, bias = (torch.randn(s, generator=seeded).bfloat16() for s in ((3, 256), (128,)))
    out = product(method, layer, x, bias)
    assert isinstance(layer.cpu_linear, gguf_blocks.SideBySide)
    assert_as_good_as_bf16(out, x, torch.cat(weights).double(), bias)


def test_gate_and_up_of_a_rank_become_one_weight(rank: int, seeded: torch.Generator) -> None:
    kind = KINDS["Q5_0"]
    raw = [random_blocks(kind, 48, 96), random_blocks(kind, 48, 96).flip(0)]
    method, layer = made([kind, kind], 96, [24, 24])
    for shard in (1, 0):
        layer.weight.load_merged_column_weight(
            raw[shard], shard_id=shard, shard_size=24, shard_offset=24 * shard
        )
    weight = torch.cat([reference(kind, r)[rank * 24 : rank * 24 + 24] for r in raw]).double()
    x, bias = (torch.randn(s, generator=seeded).bfloat16() for s in ((3, 96), (48,)))
    out = product(method, layer, x, bias)
    assert layer.cpu_linear.parts == 2
    assert_as_good_as_bf16(out, x, weight, bias)


def test_a_vocabulary_is_filled_up_with_zeros(rank: int, seeded: torch.Generator) -> None:
    kind, tokens, padded = KINDS["Q6_K"], 100, 64
    raw = random_blocks(kind, tokens, 256)
    first, end = rank * padded, min(tokens, rank * padded + padded)
    layer = SimpleNamespace(
        shard_indices=SimpleNamespace(org_vocab_start_index=first, org_vocab_end_index=end),
        num_embeddings_per_partition=padded,
    )
    param = gguf_blocks.BlocksParameter([kind], 256, None)
    gguf_blocks.load_vocabulary(layer, param, raw)
    found = blocks.dequantize(kind, param.shards[0])
    assert torch.equal(found[: end - first], reference(kind, raw)[first:end])
    assert found.shape == (padded, 256)
    assert not found[end - first :].any()


def test_ranks_must_not_cut_blocks() -> None:
    with pytest.raises(ConfigError, match=r"down_proj cannot be cut into 2 parts of whole blocks"):
        made([KINDS["Q4_K"]], 256, [40])
