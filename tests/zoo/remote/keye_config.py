"""The configs of Keye-VL: Qwen 3's, with that of its eyes."""

from typing import Any

from transformers import Qwen3Config
from transformers.models.paddleocr_vl.configuration_paddleocr_vl import PaddleOCRVisionConfig


class KeyeConfig(Qwen3Config):
    model_type = "keye"
    vision_config: Any = None

    def __post_init__(self, **rest: Any) -> None:
        if not isinstance(self.vision_config, PaddleOCRVisionConfig):
            self.vision_config = PaddleOCRVisionConfig(**(self.vision_config or {}))
        super().__post_init__(**rest)


class KeyeVL1_5Config(KeyeConfig):  # noqa: N801 (the model's name)
    model_type = "keyevl1_5"
