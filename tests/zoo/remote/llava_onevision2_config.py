"""LLaVA-OneVision 2's config: Qwen 3's and that of its eyes."""

from typing import Any

from transformers import PretrainedConfig, Qwen3Config


class LlavaOnevision2VisionConfig(PretrainedConfig):
    model_type = "llava_onevision2_vision"
    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    num_channels: int = 3
    patch_size: int = 14
    spatial_merge_size: int = 2
    temporal_patch_size: int = 1
    frame_windows_size: int = 4
    layer_norm_eps: float = 1e-6
    rope_theta: float = 10000.0


class LlavaOnevision2Config(PretrainedConfig):
    model_type = "llava_onevision2"
    text_config: Any = None
    vision_config: Any = None
    image_token_id: int = 0
    video_token_id: int = 0

    def __post_init__(self, **rest: Any) -> None:
        if not isinstance(self.text_config, Qwen3Config):
            self.text_config = Qwen3Config(**(self.text_config or {}))
        if not isinstance(self.vision_config, LlavaOnevision2VisionConfig):
            self.vision_config = LlavaOnevision2VisionConfig(**(self.vision_config or {}))
        super().__post_init__(**rest)
