"""Pages of the KV cache: the default, and what a model with chunked attention needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cpu_backend.errors import ConfigError
from cpu_backend.platform import BLOCK_SIZE, _set_block_size


def config(chunk: int | None = None, block_size: int | None = None) -> Any:
    text = SimpleNamespace(attention_chunk_size=chunk)
    cache = SimpleNamespace(block_size=block_size, user_specified_block_size=bool(block_size))
    return SimpleNamespace(
        cache_config=cache, model_config=SimpleNamespace(hf_text_config=text), parallel_config=None
    )


@pytest.mark.parametrize(
    ("chunk", "expected"), [(None, BLOCK_SIZE), (8192, BLOCK_SIZE), (48, 16), (64, 64), (192, 64)]
)
def test_pages_divide_the_chunks_of_attention(chunk: int | None, expected: int) -> None:
    made = config(chunk)
    _set_block_size(made)
    assert made.cache_config.block_size == expected


@pytest.mark.parametrize(("chunk", "block_size"), [(40, None), (48, 32), (None, 24)])
def test_other_pages_are_refused_in_a_sentence(chunk: int | None, block_size: int | None) -> None:
    with pytest.raises(ConfigError, match="choose"):
        _set_block_size(config(chunk, block_size))
