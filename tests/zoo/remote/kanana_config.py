"""The config of Kanana-V: those of Qwen2-VL's encoder, an abstractor and Llama."""

from typing import Any

from transformers import LlamaConfig, PretrainedConfig
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig


class KananaProjectorConfig(PretrainedConfig):
    model_type = "kanana-1.5-v-visual_projector"
    feature_layer_index: int = -1
    pos_emb: bool = True
    pos_emb_size: int = 576
    encoder_hidden_size: int = 1280
    hidden_size: int = 1024
    output_hidden_size: int = 2048
    merge_size: int = 2
    depth: int = 3
    mlp_depth: int = 2


class KananaVConfig(PretrainedConfig):
    model_type = "kanana-1.5-v"
    vision_config: Any = None
    projector_config: Any = None
    text_config: Any = None

    def __post_init__(self, **rest: Any) -> None:
        self.vision_config = _made(Qwen2VLVisionConfig, self.vision_config)
        self.projector_config = _made(KananaProjectorConfig, self.projector_config)
        self.text_config = _made(LlamaConfig, self.text_config)
        super().__post_init__(**rest)


def _made(kind: Any, given: Any) -> Any:
    return given if isinstance(given, kind) else kind(**(given or {}))
