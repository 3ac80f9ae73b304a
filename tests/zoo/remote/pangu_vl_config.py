"""The config of openPangu-VL: a text's as Llama has it, with that of its eyes."""

from typing import Any

from transformers import LlamaConfig
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig


class OpenPanguVLConfig(LlamaConfig):
    model_type = "openpangu_vl"
    vision_config: Any = None
    image_token_id: int = 0
    video_token_id: int = 0

    def __post_init__(self, **rest: Any) -> None:
        if not isinstance(self.vision_config, Qwen2_5_VLVisionConfig):
            self.vision_config = Qwen2_5_VLVisionConfig(**(self.vision_config or {}))
        super().__post_init__(**rest)
