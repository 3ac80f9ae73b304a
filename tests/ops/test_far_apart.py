"""Caches larger than 32-bit numbers count: pages and states 2^31 and more elements from the first.

The memory in between is asked for and never touched, so none is used.
"""

from __future__ import annotations

import mmap
from dataclasses import replace

import pytest
import torch

from tests.ops import test_causal_conv as conv
from tests.ops import test_delta_rule as delta
from tests.ops import test_latent_attention as latent
from tests.ops import test_sparse_attention as sparse
from tests.ops import test_state_scan as scan
from tests.ops.attention_case import PLAIN, QUANTIZED, Cache, Shape, make_case, run
from tests.ops.test_attention import BATCHES, CAUSAL

FARTHEST = 5 << 30  # of the last row's first element, from the first's
NO_RESERVE = 0x4000  # Linux's MAP_NORESERVE, which Python names from 3.13 on


def far_apart(rows: torch.Tensor) -> torch.Tensor:
    """A copy whose first dimension has a stride so large that the last begins at FARTHEST."""
    stride = -(-FARTHEST // (len(rows) - 1) // 64) * 64
    bytes_ = (FARTHEST + 64 * len(rows) + rows[0].numel()) * rows.element_size()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    memory = torch.frombuffer(mmap.mmap(-1, bytes_, flags=flags), dtype=rows.dtype)
    result = memory.as_strided(rows.shape, (stride, *rows[:1].contiguous().stride()[1:]))
    result.copy_(rows)
    return result


@pytest.mark.parametrize("cache", [PLAIN, *QUANTIZED], ids=lambda cache: cache.dtype)
def test_pages_of_keys_and_values(cache: Cache, seeded: torch.Generator) -> None:
    case = make_case(Shape(*BATCHES["mixed"]), torch.bfloat16, seeded, cache)
    far = replace(case, pages=far_apart(case.pages))
    assert torch.equal(run(far, CAUSAL), run(case, CAUSAL))
    near = case.pages.clone()
    for pages in (near, far.pages):
        torch.ops._C.cpu_attn_reshape_and_cache(
            case.query[:1, :2], case.query[:1, 2:], *replace(case, pages=pages).halves,
            torch.tensor([len(near) * case.shape.block_size - 1]), "", *cache.arguments,
        )  # fmt: skip
    assert not torch.equal(near.view(torch.int8), case.pages.view(torch.int8))
    assert torch.equal(far.pages.view(torch.int8), near.view(torch.int8))


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8", "int8_per_token_head"])
def test_pages_of_latents(kv_cache_dtype: str, seeded: torch.Generator) -> None:
    lengths = (70, 5, 33)
    layer = latent.Layer(latent.SIZES[1], lengths, torch.bfloat16, seeded)
    if kv_cache_dtype != "auto":
        layer.use_codes(kv_cache_dtype)
    empty, results = layer.cache, []
    for cache in (empty.clone(), far_apart(empty)):
        layer.cache = cache
        steps = [layer.run([(i, 0, n - 1) for i, n in enumerate(lengths)])]
        steps.append(layer.run([(i, n - 1, n) for i, n in enumerate(lengths)]))
        results.append(torch.cat([rows for step in steps for rows in step]))
    assert torch.equal(*results)


def test_pages_of_chosen_tokens(seeded: torch.Generator) -> None:
    lengths = (70, 5, 33)
    model = sparse.Model(sparse.SIZES[1], lengths, torch.bfloat16, seeded)
    results = []
    for far in (False, True):
        if far:
            model.rows, model.index_cache = far_apart(model.rows), far_apart(model.index_cache)
        outputs, chosen = model.run([(i, 0, n) for i, n in enumerate(lengths)])
        results.append((torch.cat(outputs), torch.cat(chosen)))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("decays", delta.DECAYS)
def test_states_of_the_delta_rule(decays: str, seeded: torch.Generator) -> None:
    case = delta.make_case((2, 4, 15, 33), torch.bfloat16, seeded, decays=decays)
    far = far_apart(case.states)
    assert torch.equal(case.run(states=far), case.run())
    assert torch.equal(far, case.states)


def test_states_of_scans(seeded: torch.Generator) -> None:
    given = scan.mamba2(3, 4, 16, 2, 16, torch.bfloat16, seeded)
    near = torch.randn(6, 4, 16, 16, generator=seeded)
    states, outputs = (near, far_apart(near)), []
    for held in states:
        outputs.append(torch.zeros(3, 4, 16, dtype=torch.bfloat16))
        scan.update(held, given, outputs[-1], scan.indices(5, 1, 3), None)
    assert torch.equal(*outputs)
    assert torch.equal(*states)


def test_states_of_convolutions(seeded: torch.Generator) -> None:
    x, weight, near = (
        torch.randn(size, generator=seeded).bfloat16() for size in ((9, 40), (40, 4), (6, 3, 40))
    )
    outputs, states = [], (near, far_apart(near))
    for held in states:
        continued = torch.tensor([True, True])
        outputs.append(
            conv.forward(
                x,
                weight,
                None,
                held.transpose(1, 2),
                conv.indices(0, 2, 9),
                conv.indices(5, 1),
                continued,
            )
        )
    assert torch.equal(*outputs)
    assert torch.equal(*states)
