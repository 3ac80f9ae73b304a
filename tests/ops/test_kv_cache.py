"""cpu_attn_reshape_and_cache, exactly; and what the attention ops refuse."""

from __future__ import annotations

import re

import pytest
import torch

from cpu_backend import ops
from cpu_backend.attention.backend import parts
from tests.ops.attention_case import Cache, Case, Shape, halves, make_case, plan
from tests.reference.attention import Masking, in_panels, page
from tests.targets import TARGETS

WRITE = "cpu_attn_reshape_and_cache"
# Numbers of 32 bits in a vector.
FEATURES = TARGETS[ops.load().target].features
LANES = 16 if "avx512f" in FEATURES else 8 if "avx2" in FEATURES else 4


def write(
    key: torch.Tensor,
    value: torch.Tensor,
    pages: torch.Tensor,
    slots: list[int],
    dtype: str = "auto",
) -> None:
    slot_mapping = torch.tensor(slots, dtype=torch.int64)
    torch.ops._C.cpu_attn_reshape_and_cache(
        key, value, *halves(pages), slot_mapping, "", 1.0, 1.0, dtype
    )


@pytest.mark.parametrize(("block_size", "head_dim"), [(16, 32), (32, 80), (128, 16)])
@pytest.mark.parametrize("in_order", [False, True], ids=["any order", "in order"])
def test_pages_hold_keys_by_channel_and_values_by_token(
    block_size: int, head_dim: int, in_order: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    tokens, kv_heads = 3 * block_size, 2
    key = torch.randn(tokens, kv_heads, head_dim, generator=seeded).to(dtype)
    value = torch.randn(tokens, kv_heads, head_dim, generator=seeded).to(dtype)
    pages = torch.full((3, kv_heads, 2 * block_size, head_dim), float("nan"), dtype=dtype)
    order = torch.arange(tokens) if in_order else torch.randperm(tokens, generator=seeded)
    write(key, value, pages, order.tolist())
    at = order.argsort().view(3, block_size)  # [block, offset]: the token that went there
    for block in range(3):
        for head in range(kv_heads):
            expected = page(key[at[block], head], value[at[block], head], LANES)
            assert torch.equal(pages[block, head].reshape(-1), expected)


def test_negative_slots_and_other_slots_stay_untouched(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    kv = torch.randn(2, 6, 2, 32, generator=seeded).to(dtype)
    pages = torch.full((4, 2, 32, 32), float("nan"), dtype=dtype)
    write(kv[0], kv[1], pages, [-1, 17, -1, 40, 2, -1])
    written = pages.isnan().logical_not().sum(dim=(1, 2, 3))
    assert written.tolist() == [128, 128, 128, 0]  # 2 heads x 32 channels x key and value
    only = torch.full_like(pages, float("nan"))
    write(kv[0, [1, 3, 4]], kv[1, [1, 3, 4]], only, [17, 40, 2])
    assert torch.equal(pages.nan_to_num(7.0), only.nan_to_num(7.0))
    write(kv[0], kv[1], only, [-1] * 6)
    assert torch.equal(pages.nan_to_num(7.0), only.nan_to_num(7.0))


def test_keys_and_values_may_have_any_strides(dtype: torch.dtype, seeded: torch.Generator) -> None:
    key, value = torch.randn(2, 6, 2, 32, 3, generator=seeded).to(dtype)[..., 1]
    pages, dense = (torch.zeros(4, 2, 32, 32, dtype=dtype) for _ in range(2))
    slots = [3, 17, 5, 40, 2, 63]
    write(key, value, pages, slots)
    write(key.contiguous(), value.contiguous(), dense, slots)
    assert torch.equal(pages, dense)


def test_keys_and_values_may_be_views_with_padding_rows(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    """Slices of a merged projection, and more rows than slots: the rest is padding."""
    qkv = torch.randn(9, 8, 32, generator=seeded).to(dtype)
    key, value = qkv[:, 4:6], qkv[:, 6:8]
    pages, expected = torch.zeros(2, 2, 2, 32, 32, dtype=dtype)
    slots = [30, 1, 2, 16, 0, 9, 8]
    write(key, value, pages, slots)
    write(key[:7].contiguous(), value[:7].contiguous(), expected, slots)
    assert torch.equal(pages, expected)
    write(qkv.view(9, -1)[:, 128:192], qkv.view(9, -1)[:, 192:], pages.zero_(), slots)
    assert torch.equal(pages, expected)


def test_writing_no_tokens_changes_nothing(dtype: torch.dtype) -> None:
    pages, none = torch.zeros(2, 2, 32, 32, dtype=dtype), torch.empty(0, 2, 32, dtype=dtype)
    write(none, none, pages, [])
    assert not pages.any()


@pytest.fixture
def case(seeded: torch.Generator) -> Case:
    return make_case(Shape((2,), (20,)), torch.float32, seeded)


def attend(case: Case, pages: torch.Tensor, **changes: object) -> None:
    arguments: dict[str, object] = {
        "query": case.query, "output": torch.empty_like(case.query),
        "query_start_loc": case.starts, "seq_lens": torch.tensor(case.shape.seq_lens).int(),
        "scale": 1.0, "causal": True, "alibi_slopes": None, "sliding_window_size": -1,
        "block_table": case.block_table, "softcap": 0.0,
        "scheduler_metadata": plan(case, Masking()), "s_aux": None, "dynamic_causal": None,
    }  # fmt: skip
    arguments["key_cache"], arguments["value_cache"] = halves(pages)
    torch.ops._C.cpu_attention_with_kv_cache(**(arguments | changes))


@pytest.mark.parametrize(
    ("pages", "sentence"),
    [
        ((2, 2, 32, 72), "head size 72 is not supported: multiples of 16 up to 1024 are."),
        ((2, 2, 32, 1040), "head size 1040 is not supported: multiples of 16 up to 1024 are."),
        (
            (2, 2, 48, 32),
            "block size 24 is not supported: choose --block-size as a multiple of 16.",
        ),
    ],
)
def test_unsupported_page_shapes_are_named(
    pages: tuple[int, ...], sentence: str, case: Case
) -> None:
    key = torch.zeros(1, 2, pages[3])
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        write(key, key, torch.zeros(pages), [0])
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        attend(case, torch.zeros(pages))


def test_unknown_cache_is_refused_with_the_way_out(case: Case) -> None:
    sentence = (
        "--kv-cache-dtype nvfp4 is not supported: "
        "choose auto, fp8, fp8_e4m3, fp8_e5m2 or int8_per_token_head."
    )
    shape = case.shape
    calls = [
        lambda: write(case.keys[0], case.values[0], case.pages, [0] * 20, "nvfp4"),
        lambda: attend(case, case.pages, kv_cache_dtype="nvfp4"),
        lambda: torch.ops._C.get_scheduler_metadata(
            1, shape.heads, shape.kv_heads, shape.head_dim, torch.tensor([20]).int(),
            torch.float32, case.starts, True, -1, "", True, None, "nvfp4",
        ),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(NotImplementedError) as error:
            call()
        assert str(error.value).splitlines()[0] == sentence


def test_attention_refuses_what_does_not_fit(case: Case) -> None:
    pages, wide = case.pages, case.block_table.long()
    refused: list[tuple[type[Exception], str, dict[str, object]]] = [
        (TypeError, "key_cache has dtype Float but query has Half", {"query": case.query.half()}),
        (TypeError, "output has dtype Half", {"output": case.query.half()}),
        (TypeError, "block_table must be int32", {"block_table": wide}),
        (ValueError, "output has shape", {"output": case.query[:1].clone()}),
        (ValueError, "3 query heads cannot share 2 KV heads", {"query": case.query[:, :3]}),
        (ValueError, "not a plan", {"scheduler_metadata": torch.zeros(16, dtype=torch.int8)}),
        (ValueError, "alibi_slopes has shape", {"alibi_slopes": torch.ones(3)}),
        (ValueError, "s_aux has shape", {"s_aux": torch.ones(3)}),
    ]
    for kind, sentence, change in refused:
        if "query" in change and kind is ValueError:
            change = change | {"output": torch.empty(2, 3, 32)}
        with pytest.raises(kind, match=sentence):
            attend(case, pages, **change)


def test_writing_refuses_what_does_not_fit(case: Case) -> None:
    key, pages = case.keys[0], case.pages
    with pytest.raises(TypeError, match="value has dtype Half but key has Float"):
        write(key, key.half(), pages, [0])
    with pytest.raises(TypeError, match="key_cache has dtype Float but key has Half"):
        write(key.half(), key.half(), pages, [0])
    with pytest.raises(ValueError, match="slot_mapping has 21 entries for 20 keys"):
        write(key, key, pages, [0] * 21)
    with pytest.raises(ValueError, match="the cache holds 2 KV heads, key has 1"):
        write(key[:, :1], key[:, :1], pages, [0])
    keys, values = halves(pages)
    with pytest.raises(ValueError, match="values of a cache page must follow its keys"):
        getattr(torch.ops._C, WRITE)(key, key, values, keys, torch.zeros(1).long(), "")


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8_codes_are_those_of_torch(kind: torch.dtype, dtype: torch.dtype) -> None:
    """Values, each in the first token of a page: every code of a step of 2^-9."""
    at = torch.arange(-4096, 4096) / 512
    value = torch.cat([at, 100 * at]).view(32, 16, 32).to(dtype)
    pages = torch.zeros(32, 16, 16, 64, dtype=torch.uint8)
    keys, values = parts(pages, 32, 32)
    slots = 16 * torch.arange(32)
    name, scale = ("fp8_e5m2" if kind == torch.float8_e5m2 else "fp8"), 1.3
    torch.ops._C.cpu_attn_reshape_and_cache(
        value, value, keys, values, slots, "", scale, scale, name
    )
    limit = torch.finfo(kind).max
    expected = (value.float() / scale).clamp(-limit, limit).to(kind).view(torch.uint8)
    blank = torch.zeros(16, 32, dtype=torch.uint8)
    for block in range(32):
        for head in range(16):
            blank[0] = expected[block, head]
            assert torch.equal(values[block, head].reshape(-1), in_panels(blank, LANES))


def test_quantized_caches_refuse_what_does_not_fit() -> None:
    key, slots = torch.ones(1, 2, 32), torch.zeros(1, dtype=torch.int64)

    def write_bytes(content: int, cache: Cache, dtype: torch.dtype = torch.uint8) -> None:
        pages = torch.zeros(3, 2, 16, content, dtype=dtype)
        torch.ops._C.cpu_attn_reshape_and_cache(
            key, key, *parts(pages, 32, 32), slots, "", *cache.arguments
        )

    write_bytes(72, Cache("int8_per_token_head"))
    with pytest.raises(ValueError, match="room for two fp32 scales per token"):
        write_bytes(64, Cache("int8_per_token_head"))
    with pytest.raises(TypeError, match="quantized caches have one byte per element"):
        write_bytes(64, Cache("fp8"), torch.float16)
    for scale in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"k_scale is .* must be a positive number"):
            write_bytes(64, Cache("fp8", scale, 1.0))
        with pytest.raises(ValueError, match=r"v_scale is .* must be a positive number"):
            write_bytes(64, Cache("fp8_e5m2", 1.0, scale))
