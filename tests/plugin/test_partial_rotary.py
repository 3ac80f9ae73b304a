"""A config says which part of a head turns (host/partial_rotary.py)."""

from __future__ import annotations

import pytest
from transformers import AutoConfig, LlamaConfig
from vllm.transformers_utils.config import patch_rope_parameters


class Unlisted(LlamaConfig):
    """Of a checkpoint: its class does not list the field."""

    model_type = "unlisted"


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_the_factor_is_kept(factor: float) -> None:
    AutoConfig.register(Unlisted.model_type, Unlisted, exist_ok=True)
    config = AutoConfig.for_model("unlisted", partial_rotary_factor=factor)
    patch_rope_parameters(config)
    assert config.partial_rotary_factor == factor
    assert config.rope_parameters["partial_rotary_factor"] == factor


def test_nothing_is_said_of_whole_heads() -> None:
    config = Unlisted()
    patch_rope_parameters(config)
    assert not hasattr(config, "partial_rotary_factor")
