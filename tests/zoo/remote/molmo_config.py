"""The configs of Molmo and Molmo 2: those of Qwen's texts under their own names."""

from typing import Any

from transformers import PretrainedConfig, Qwen2Config, Qwen3Config


class MolmoConfig(Qwen2Config):
    model_type = "molmo"
    embedding_size: Any = None
    layer_norm_eps: float = 1e-6
    layer_norm_type: str = "rms"
    attention_layer_norm: bool = False
    norm_after: bool = False
    qkv_bias: bool = True
    weight_tying: bool = False


class Molmo2TextConfig(Qwen3Config):
    model_type = "molmo2_text"
    additional_vocab_size: int = 128
    qkv_bias: bool = False
    use_qk_norm: bool = True
    qk_norm_type: str = "qwen3"
    layer_norm_eps: float = 1e-6
    norm_after: bool = False
    rope_theta: float = 1000000.0
    rope_scaling_layers: Any = None


class Molmo2VitConfig(PretrainedConfig):
    model_type = "molmo2_vit"
    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_hidden_layers: int = 27
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    head_dim: int = 72
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    image_default_input_size: Any = (378, 378)
    image_patch_size: int = 14
    image_num_pos: int = 729


class Molmo2AdapterConfig(PretrainedConfig):
    model_type = "molmo2_adapter"
    vit_layers: Any = (-3, -9)
    pooling_attention_mask: bool = True
    hidden_size: int = 1152
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    head_dim: int = 72
    hidden_act: str = "silu"
    intermediate_size: int = 18944
    text_hidden_size: int = 3584


class Molmo2Config(PretrainedConfig):
    model_type = "molmo2"
    text_config: Any = None
    vit_config: Any = None
    adapter_config: Any = None
    image_patch_id: int = 0
    image_col_id: int = 0
    image_start_token_id: int = 0
    low_res_image_start_token_id: int = 0
    image_end_token_id: int = 0
    image_low_res_id: int = 0
    frame_start_token_id: int = 0
    frame_end_token_id: int = 0

    def __post_init__(self, **rest: Any) -> None:
        self.text_config = _made(Molmo2TextConfig, self.text_config)
        self.vit_config = _made(Molmo2VitConfig, self.vit_config)
        self.adapter_config = _made(Molmo2AdapterConfig, self.adapter_config)
        super().__post_init__(**rest)


def _made(kind: Any, given: Any) -> Any:
    return given if isinstance(given, kind) else kind(**(given or {}))
