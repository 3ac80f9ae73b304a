"""Configs of Llama Nemotron Nano VL and Eagle 2.5, a tower and the settings of its tiles."""

from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    ImageProcessingMixin,
    PretrainedConfig,
    RadioConfig,
    RadioModel,
    SiglipVisionConfig,
)


class TowerConfig(RadioConfig):
    model_type = "c_radio"


class Tower(RadioModel):
    """By the name of its argument that published code has; it scales nothing in its layers."""

    config_class = TowerConfig

    def __init__(self, config: Any, **rest: Any) -> None:
        super().__init__(config, **rest)
        for layer in self.encoder.layer:
            layer.layer_scale1 = layer.layer_scale2 = torch.nn.Identity()

    def forward(self, x: Any) -> Any:
        return super().forward(pixel_values=x)


AutoModel.register(TowerConfig, Tower)


class LlamaNemotronVLConfig(PretrainedConfig):
    model_type = "Llama_Nemotron_Nano_VL"
    tower = TowerConfig
    llm_config: Any = None
    vision_config: Any = None
    force_image_size: int = 512
    downsample_ratio: float = 0.5
    ps_version: str = "v2"
    projector_hidden_size: int = 0
    vit_hidden_size: int = 0

    def __post_init__(self, **rest: Any) -> None:
        if not isinstance(self.llm_config, PretrainedConfig):
            self.llm_config = AutoConfig.for_model(**(self.llm_config or {"model_type": "llama"}))
        if not isinstance(self.vision_config, PretrainedConfig):
            self.vision_config = type(self).tower(**(self.vision_config or {}))
        super().__post_init__(**rest)


class LlamaNemotronVLEmbedConfig(LlamaNemotronVLConfig):
    model_type = "llama_nemotron_vl"
    tower = SiglipVisionConfig
    max_dynamic_patch: int = 6
    pooling: str = "avg"


class EagleConfig(LlamaNemotronVLEmbedConfig):
    model_type = "eagle_2_5_vl"
    min_dynamic_patch: int = 1
    dynamic_image_size: bool = True
    use_thumbnail: bool = True
    select_layer: int = -1


class Tiles(ImageProcessingMixin):
    """The host asks it for these numbers alone."""

    def __init__(self, image_size: int, max_num_tiles: int, use_thumbnail: bool, **_: Any) -> None:
        super().__init__()
        self.image_size, self.max_num_tiles = image_size, max_num_tiles
        self.use_thumbnail = use_thumbnail
