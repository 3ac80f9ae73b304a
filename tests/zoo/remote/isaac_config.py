"""The config of Isaac: Qwen 3's, with that of its eyes."""

from typing import Any

from transformers import Qwen3Config


class IsaacConfig(Qwen3Config):
    model_type = "isaac"
    vision_config: Any = None
    vision_patch_size: int = 16
    vision_max_num_patches: int = 6144
    vision_min_num_patches: int = 256
    pixel_shuffle_scale: int = 2
    vision_token: str = "<image>"
