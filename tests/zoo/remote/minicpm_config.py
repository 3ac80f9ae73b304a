"""The configs of MiniCPM-V and MiniCPM-o: a text model's, with those of its eyes and ears."""

from typing import Any

from transformers import Qwen3Config, SiglipVisionConfig, WhisperConfig


class MiniCPMVConfig(Qwen3Config):
    """``version`` says whose text model it is; what one of them has beside Qwen 3's is here too."""

    model_type = "minicpmv"
    version: Any = "4.5"
    mlp_bias: bool = False
    vision_config: Any = None
    drop_vision_last_layer: bool = False
    image_size: int = 448
    query_num: int = 64

    def __post_init__(self, **rest: Any) -> None:
        self.vision_config = _made(SiglipVisionConfig, self.vision_config)
        super().__post_init__(**rest)


class MiniCPMOConfig(MiniCPMVConfig):
    model_type = "minicpmo"
    audio_config: Any = None
    audio_pool_step: int = 2
    audio_chunk_length: float = 1.0

    def __post_init__(self, **rest: Any) -> None:
        self.audio_config = _made(WhisperConfig, self.audio_config)
        super().__post_init__(**rest)


def _made(kind: Any, given: Any) -> Any:
    return given if isinstance(given, kind) else kind(**(given or {}))
