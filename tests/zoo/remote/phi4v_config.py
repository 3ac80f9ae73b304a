"""The config of Phi-4 vision: Phi-3's, with that of its eyes."""

from typing import Any

from transformers import Phi3Config


class Phi4VConfig(Phi3Config):
    model_type = "phi4-siglip"
    vision_config: Any = None
    mm_hidden_size: int = 1152
    min_num_patches: int = 256
    max_num_patches: int = 3600
