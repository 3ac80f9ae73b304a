"""The configs of Step's models with images: what vLLM reads of their eyes, and their text's."""

from typing import Any

from transformers import AutoConfig, PretrainedConfig


class StepVisionConfig(PretrainedConfig):
    model_type = "perception_encoder"
    width: int = 1536
    layers: int = 47
    heads: int = 16
    image_size: int = 728
    patch_size: int = 14
    mlp_ratio: float = 8960 / 1536
    hidden_act: str = "quick_gelu"
    ls_init_value: Any = 0.1
    output_dim: Any = None
    use_abs_posemb: bool = True
    use_cls_token: bool = False
    use_rope2d: bool = True
    use_ln_pre: bool = True
    use_ln_post: bool = False


class StepConfig(PretrainedConfig):
    vision_config: Any = None
    text_config: Any = None
    projector_bias: bool = False
    understand_projector_stride: int = 2
    image_token_id: int = 0

    def __post_init__(self, **rest: Any) -> None:
        if not isinstance(self.vision_config, StepVisionConfig):
            self.vision_config = StepVisionConfig(**(self.vision_config or {}))
        if isinstance(self.text_config, dict):
            self.text_config = _text(self.text_config)
        super().__post_init__(**rest)


class Step3p7Config(StepConfig):
    model_type = "step3p7"


class StepVLConfig(StepConfig):
    model_type = "step_robotics"


def _text(said: dict[str, Any]) -> Any:
    if said["model_type"] != "step3p5":
        return AutoConfig.for_model(**said)
    from vllm.transformers_utils.configs.step3p5 import Step3p5Config

    return Step3p5Config(**said)
