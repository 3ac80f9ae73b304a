"""Ovis 2.5's config: a text model's and that of a tower which reads images of any size."""

from typing import Any

from transformers import AutoConfig, PretrainedConfig


class TowerConfig(PretrainedConfig):
    model_type = "siglip2_navit"
    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_hidden_layers: int = 27
    num_attention_heads: int = 16
    num_channels: int = 3
    num_patches: int = -1
    image_size: int = 512
    patch_size: int = 16
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    attention_dropout: float = 0.0
    hidden_stride: int = 2
    window_size: int = 112
    fullatt_block_indexes: Any = None
    temporal_patch_size: int = 1
    preserve_original_pe: bool = True
    use_rope: bool = True


class Ovis2_5Config(PretrainedConfig):  # noqa: N801 (the model's name)
    model_type = "ovis2_5"
    llm_config: Any = None
    vit_config: Any = None
    visual_vocab_size: int = 65536
    hidden_size: int = 0

    def __post_init__(self, **rest: Any) -> None:
        if not isinstance(self.llm_config, PretrainedConfig):
            text = self.llm_config or {"model_type": "qwen3"}
            self.llm_config = AutoConfig.for_model(**text)
        if not isinstance(self.vit_config, PretrainedConfig):
            self.vit_config = TowerConfig(**(self.vit_config or {}))
        super().__post_init__(**rest)
