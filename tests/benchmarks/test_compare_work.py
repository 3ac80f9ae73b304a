"""Works as they are written, and the bounds against numbers worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks.compare.models import MODELS, Shape
from benchmarks.compare.work import Limits, Work, prompt_seconds, step_seconds

# 2 layers, hidden 8, 2 heads and 1 cached head of 4, feed-forward 16, 10 tokens.
CONFIG = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "vocab_size": 10,
}
LAYER = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16
SLOW_READ = Limits(bytes_per_s=1.0, flop_per_s=1e30)
SLOW_MULTIPLY = Limits(bytes_per_s=1e30, flop_per_s=1.0)


@pytest.fixture
def shape() -> Shape:
    return Shape.of(CONFIG)


@pytest.mark.parametrize(
    "text", ["decode:32:256", "prompt:1024", "batch:64:128:128", "http:32:128:64"]
)
def test_work_is_written_as_it_is_read(text: str) -> None:
    assert str(Work.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("speed:3", "begin with one of decode, prompt, batch, http"),
        ("", "begin with one of"),
        ("prompt", "write prompt:inputs in numbers"),
        ("prompt:0", "write prompt:inputs in numbers"),
        ("prompt:-5", "write prompt:inputs in numbers"),
        ("prompt:1:2", "write prompt:inputs in numbers"),
        ("batch:4:x:8", "write batch:requests:inputs:outputs in numbers"),
        ("decode:8:1", "ask for two tokens or more"),
    ],
)
def test_work_refuses(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Work.parse(text)


@pytest.mark.parametrize(
    ("text", "context"),
    [("decode:32:256", 288), ("prompt:1024", 1025), ("batch:64:128:100", 228)],
)
def test_context_is_the_longest_sequence(text: str, context: int) -> None:
    assert Work.parse(text).context == context


def test_shape_counts_weights_cache_and_attention(shape: Shape) -> None:
    assert shape == Shape(
        layer_weights=2 * LAYER,
        head_weights=80,
        kv_elements=2 * 2 * 4,
        attention_flop=2 * 4 * 2 * 4,
        vocab_size=10,
    )


def test_shape_of_llama_1b_has_its_known_size() -> None:
    config = MODELS["Llama-3.2-1B-dummy"].config
    assert config is not None
    shape = Shape.of(config)  # type: ignore[arg-type]
    norms = (2 * 16 + 1) * 2048
    assert shape.layer_weights + shape.head_weights + norms == 1_235_814_400


@pytest.mark.parametrize(
    ("dtype", "weight_bytes", "cache_bytes"),
    [("float32", 4, 4), ("bfloat16", 2, 2), ("int8", 34 / 32, 2), ("int4", 18 / 32, 2)],
)
def test_step_reads_weights_once_and_every_cache(
    shape: Shape, dtype: str, weight_bytes: float, cache_bytes: float
) -> None:
    seconds = step_seconds(shape, dtype, SLOW_READ, requests=3, context=5)
    expected = (2 * LAYER + 80) * weight_bytes + 3 * 5 * 16 * cache_bytes
    assert seconds == pytest.approx(expected)


def test_step_multiplies_for_every_request(shape: Shape) -> None:
    seconds = step_seconds(shape, "bfloat16", SLOW_MULTIPLY, requests=3, context=5)
    assert seconds == pytest.approx(3 * (2 * (2 * LAYER + 80) + 64 * 5))


def test_prompt_is_causal_and_needs_one_row_of_logits(shape: Shape) -> None:
    # 1 + 2 + 3 tokens of context.
    expected = 2 * (3 * 2 * LAYER + 80) + 64 * 6
    assert prompt_seconds(shape, SLOW_MULTIPLY, 3) == pytest.approx(expected)


def test_bounds_are_rates(shape: Shape) -> None:
    both = Limits(bytes_per_s=1e6, flop_per_s=1e6)
    step = step_seconds(shape, "float32", both, 1, 8 + 2)
    assert Work.parse("decode:8:4").bound(shape, "float32", both) == pytest.approx(1 / step)
    prompt = prompt_seconds(shape, both, 8)
    assert Work.parse("prompt:8").bound(shape, "float32", both) == pytest.approx(8 / prompt)
    steps = 3 * step_seconds(shape, "float32", both, 5, 8 + 2)
    batch = Work.parse("batch:5:8:4").bound(shape, "float32", both)
    assert batch == pytest.approx(20 / (5 * prompt + steps))
    assert Work.parse("http:5:8:4").bound(shape, "float32", both) == pytest.approx(batch)
