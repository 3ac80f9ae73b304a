"""DeepSeek-VL2's images are encoded as its published code does.

What: its encoder takes the whole patches of an image, with the positions that it was trained with,
    and has GELU by tanh.
Why: the host makes it of timm's SigLIP with padding, so that an image of 384 pixels has 28 patches
    along a side in place of 27, with positions that are interpolated; and timm's has the other
    GELU.  Published code (deepseek_vl2/models/siglip_vit.py of deepseek-ai/DeepSeek-VL2) has
    neither.
Since: 0.30
Until: it has neither.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.models.deepseek_vl2",
    "DeepseekVLV2ForCausalLM._init_vision_module(self, vision_config, quant_config, ...)",
    when=When.COMPUTING,
)
def as_published(original: Any) -> Any:
    """Images are of the size that the encoder is made for, so the positions fit them."""

    def made(self: Any, *args: Any, **kwargs: Any) -> Any:
        encoder = original(self, *args, **kwargs)
        encoder.patch_embed.dynamic_img_pad = False
        encoder.patch_embed.strict_img_size = True
        for block in encoder.blocks:
            block.mlp.act = torch.nn.GELU(approximate="tanh")
        return encoder

    return made
