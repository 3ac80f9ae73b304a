"""YaRN of positions in several directions beside transformers (host/mrope_yarn.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen2_5_VLTextConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope

# As Qwen2.5-VL's README has it for long texts, and shorter.
YARN: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}


@pytest.mark.parametrize("trained", [32768, 256])
def test_angles_are_those_of_transformers(trained: int) -> None:
    rope = {**YARN, "factor": 4.0, "original_max_position_embeddings": trained}
    config = Qwen2_5_VLTextConfig(
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=4 * trained,
        rope_parameters=dict(rope),
    )
    frequencies, scale = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    with set_current_vllm_config(VllmConfig()):
        rotary = get_rope(128, 4 * trained, rope_parameters=rope, dtype=torch.float32)
    assert len(rotary.cos_sin_cache) >= 4 * trained
    angles = torch.arange(200)[:, None] * frequencies
    expected = torch.cat((angles.cos(), angles.sin()), dim=-1) * scale
    torch.testing.assert_close(rotary.cos_sin_cache[:200], expected, atol=1e-4, rtol=0)
