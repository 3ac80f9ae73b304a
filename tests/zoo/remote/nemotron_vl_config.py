"""Nemotron Nano VL's config: those of its text, its eyes and, of some, its ears."""

from typing import Any

from transformers import AutoConfig, PretrainedConfig


class NemotronVLConfig(PretrainedConfig):
    model_type = "NemotronH_Nano_VL_V2"

    def __init__(
        self,
        llm_config: Any = None,
        vision_config: Any = None,
        sound_config: Any = None,
        **rest: Any,
    ) -> None:
        self.llm_config = AutoConfig.for_model(**(llm_config or {"model_type": "nemotron_h"}))
        self.vision_config = PretrainedConfig(**(vision_config or {}))
        self.sound_config = PretrainedConfig(**sound_config) if sound_config else None
        super().__init__(**rest)
