"""Requests are no longer than the tables of rotary embeddings (cpu_backend/positions.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope

from cpu_backend import positions
from cpu_backend.errors import ConfigError

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}


def config(rotary: dict[str, Any], asked: int | None) -> Any:
    """Of a model of 64 positions; the host's length is ``factor`` times as long."""
    text = SimpleNamespace(
        model_type="internlm2", rope_parameters=rotary, max_position_embeddings=64
    )
    model = SimpleNamespace(
        architecture="InternLM2ForCausalLM",
        hf_config=text,
        hf_text_config=text,
        original_max_model_len=asked,
        max_model_len=asked if asked and asked > 0 else 256,
    )
    return SimpleNamespace(model_config=model)


@pytest.mark.parametrize(
    ("rotary", "asked", "expected"),
    [
        (DYNAMIC, None, 64),
        (DYNAMIC, -1, 64),
        (DYNAMIC, 256, 256),
        ({**DYNAMIC, "alpha": 1000.0}, None, 256),
        ({"rope_type": "linear", "factor": 4.0}, None, 256),
        ({}, None, 256),
    ],
)
def test_what_the_user_did_not_ask_for_is_as_long_as_the_table(
    rotary: dict[str, Any], asked: int | None, expected: int
) -> None:
    made = config(rotary, asked)
    positions.shorten(made)
    assert made.model_config.max_model_len == expected


def test_dual_chunks_change_nothing_within_the_first() -> None:
    chunks = {"chunk_size": 96, "local_size": 8, "original_max_position_embeddings": 64}
    for asked, expected in {None: 64, -1: 64, 50: 50}.items():
        made = config({}, asked)
        made.model_config.hf_config.dual_chunk_attention_config = dict(chunks)
        positions.shorten(made)
        assert made.model_config.max_model_len == expected
        assert not hasattr(made.model_config.hf_config, "dual_chunk_attention_config")
    made = config({}, 65)
    made.model_config.hf_config.dual_chunk_attention_config = dict(chunks)
    with pytest.raises(ConfigError, match="give --max-model-len 64 or less"):
        positions.shorten(made)


def test_prompts_that_see_themselves_end_at_the_window() -> None:
    for asked, expected in {None: 48, -1: 48, 40: 40}.items():
        made = config({}, asked)
        made.model_config.hf_config.model_type = "paligemma"
        made.model_config.hf_config.sliding_window = 48
        positions.shorten(made)
        assert made.model_config.max_model_len == expected
    made.model_config.max_model_len = 64
    with pytest.raises(ConfigError, match="give --max-model-len 48 or less"):
        positions.shorten(made)


def test_positions_of_roberta_begin_behind_that_of_padding() -> None:
    fields = {"max_position_embeddings": 66, "pad_token_id": 1}
    for asked, expected in {None: 64, -1: 64, 65: None, 64: 64, 40: 40}.items():
        made = config({}, asked)
        vars(made.model_config.hf_text_config).update(model_type="xlm-roberta", **fields)
        if expected is None:
            with pytest.raises(ConfigError, match="give --max-model-len 64 or less"):
                positions.shorten(made)
        else:
            positions.shorten(made)
            assert made.model_config.max_model_len == expected
    made.model_config.hf_text_config.position_embedding_type = "rotary"
    made.model_config.max_model_len = 66
    positions.shorten(made)
    assert made.model_config.max_model_len == 66


@pytest.mark.parametrize("kind", ["default", "dynamic", "linear", "yarn"])
def test_a_longer_request_than_the_table_is_refused(kind: str) -> None:
    rotary = {**DYNAMIC, "rope_type": kind, "original_max_position_embeddings": 64}
    with set_current_vllm_config(VllmConfig()):
        rope = get_rope(32, 64, rope_parameters=rotary, dtype=torch.float32)
    model = torch.nn.Sequential(rope)
    length = len(rope.cos_sin_cache)
    assert length == (256 if kind in ("linear", "yarn") else 64)
    positions.check(model, length)
    with pytest.raises(ConfigError, match=f"give --max-model-len {length} or less"):
        positions.check(model, length + 1)
