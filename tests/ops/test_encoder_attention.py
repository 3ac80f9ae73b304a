"""Attention of towers: within pictures, windows of them, or sounds."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from cpu_backend.attention import encoder
from cpu_backend.host import tower_attention
from tests.ops.accuracy import assert_accurate
from tests.reference.attention import Masking, attend

EVERYTHING = Masking(causal=False)
SCALE = 0.17


def one(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Of one sequence."""
    return attend(query, key, value, SCALE, EVERYTHING)


def starts(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


@pytest.mark.parametrize("size", [64, 72, 80, 20])
@pytest.mark.parametrize(
    "lengths",
    [[577], [64, 64, 8, 0, 1, 16], [300, 17, 257], [3]],
    ids=lambda v: "-".join(map(str, v)),
)
def test_every_token_attends_to_its_sequence(
    lengths: list[int], size: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    heads, kv_heads, tokens = 6, 2, sum(lengths)
    packed = torch.randn(tokens, heads + 2 * kv_heads, size, generator=seeded).to(dtype)
    query, key, value = packed.split((heads, kv_heads, kv_heads), 1)  # as of one projection
    places = starts(lengths)
    out = encoder.attend(query, key, value, places, places, SCALE)
    for begin, end in itertools.pairwise(places):
        if begin < end:
            parts = (query[begin:end], key[begin:end], value[begin:end])
            assert_accurate(out[begin:end], one, *parts)
            alone = torch.tensor([0, end - begin])
            assert torch.equal(encoder.attend(*parts, alone, alone, SCALE), out[begin:end])


def test_queries_of_another_number_than_keys(dtype: torch.dtype, seeded: torch.Generator) -> None:
    queries, keys = [5, 1, 40], [270, 3, 16]
    query = torch.randn(sum(queries), 4, 48, generator=seeded).to(dtype)
    key, value = torch.randn(2, sum(keys), 4, 48, generator=seeded).to(dtype)
    out = encoder.attend(query, key, value, starts(queries), starts(keys), SCALE)
    of_keys = (key.split(keys), value.split(keys))
    for found, *inputs in zip(out.split(queries), query.split(queries), *of_keys, strict=True):
        assert_accurate(found, one, *inputs)


def test_nothing_to_attend() -> None:
    nothing = torch.zeros(0, 4, 48)
    none = torch.tensor([0, 0])
    assert encoder.attend(nothing, nothing, nothing, none, none, SCALE).shape == (0, 4, 48)


@pytest.fixture
def sdpa() -> Any:
    """What ``transformers`` calls sdpa in a worker."""
    kept = AttentionInterface._global_mapping["sdpa"]
    tower_attention.take_sdpa()
    yield AttentionInterface()["sdpa"]
    AttentionInterface.register("sdpa", kept)


PADDING = torch.arange(90) < torch.tensor([[90], [37]])
MASKS = {
    "none": None,
    "padding": PADDING[:, None, None].expand(2, 1, 90, 90).clone(),
    "one for all": PADDING[1:, None, None].expand(1, 1, 90, 90),
    "causal": torch.ones(90, 90, dtype=torch.bool).tril()[None, None],
    "added": torch.randn(2, 1, 90, 90),
    "by head": (torch.rand(2, 6, 90, 90) < 0.5) | torch.eye(90, dtype=torch.bool),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("causal", [False, True, None])
def test_sdpa_of_transformers(
    mask: torch.Tensor | None, causal: bool | None, sdpa: Any, seeded: torch.Generator
) -> None:
    module = SimpleNamespace(num_key_value_groups=3)
    query = torch.randn(2, 6, 90, 72, generator=seeded).half()
    key, value = torch.randn(2, 2, 2, 90, 72, generator=seeded).half()
    mask = mask.half() if mask is not None and mask.is_floating_point() else mask
    given = {"scaling": SCALE, "is_causal": causal}
    out, weights = sdpa(module, query, key, value, mask, **given)
    expected, _ = sdpa_attention_forward(module, query, key, value, mask, **given)
    assert weights is None
    torch.testing.assert_close(out, expected, rtol=2e-3, atol=2e-3)


def test_sdpa_runs_here_where_all_queries_see_the_same(
    sdpa: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    monkeypatch.setattr(encoder, "attend", lambda query, *rest: taken.append(rest) or query)
    module = SimpleNamespace(is_causal=False)
    query = torch.randn(2, 6, 90, 72).bfloat16()
    for name, mask in MASKS.items():
        taken.clear()
        sdpa(module, query, query, query, mask if name != "added" else mask.bfloat16())
        assert bool(taken) == (name in ("none", "padding", "one for all")), name
    taken.clear()
    sdpa(module, query.float(), query.float(), query.float(), None)
    sdpa(module, query, query, query, None, dropout=0.5)
    assert not taken
