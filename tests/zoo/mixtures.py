"""Mixtures of experts that ``transformers`` lacks, made of its layers; and configs that published
checkpoints bring as code of their own."""

from __future__ import annotations

import copy
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from transformers import (
    AutoConfig,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
)
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm
from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
from transformers.models.step3p7.modeling_step3p7 import Step3p7PreTrainedModel, Step3p7TextModel

from tests.zoo.ling import SoftmaxRouter


class SarvamMLAConfig(DeepseekV3Config):
    """Of Sarvam 105B."""

    model_type = "sarvam_mla"


class PanguUltraConfig(DeepseekV3Config):
    """Of openPangu Ultra."""

    model_type = "pangu_ultra_moe"


class PanguProConfig(Glm4MoeConfig):
    """Of openPangu Pro."""

    model_type = "pangu_pro_moe_v2"


@strict
class Param2Config(Glm4MoeConfig):
    """The host looks for these two, not for what ``transformers`` makes of them."""

    model_type = "param2moe"
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None


class Step3Config(Glm4MoeConfig):
    """The host has its own."""

    model_type = "step3_text"


class NemotronPuzzleConfig(NemotronHConfig):
    """Of layers of different sizes."""

    model_type = "nemotron_h_puzzle"

    def get_nemotron_h_config_for_layer(self, layer: int) -> NemotronHConfig:
        """What the host asks for."""
        config = copy.copy(self)
        config.intermediate_size = self.intermediate_sizes[layer]
        return config


for config, like in (
    (SarvamMLAConfig, "deepseek_v3"),
    (PanguUltraConfig, "deepseek_v3"),
    (PanguProConfig, "glm4_moe"),
    (Param2Config, "glm4_moe"),
    (Step3Config, "step3p7"),
    (NemotronPuzzleConfig, "nemotron_h"),
):
    AutoConfig.register(config.model_type, config)
    # So that experts are written as published.
    register_checkpoint_conversion_mapping(
        config.model_type, get_checkpoint_conversion_mapping(like)
    )
register_checkpoint_conversion_mapping("step3p5", get_checkpoint_conversion_mapping("step3p7"))


class SarvamMLAForCausalLM(DeepseekV3ForCausalLM):
    """DeepSeek V3."""

    config_class = SarvamMLAConfig


class Param2MoEForCausalLM(Glm4MoeForCausalLM):
    """GLM-4.5."""

    config_class = Param2Config


class PanguUltraMoEForCausalLM(DeepseekV3ForCausalLM):
    """DeepSeek V3 with norms behind attention and experts, too."""

    config_class = PanguUltraConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        _normalize_outputs(self)


class PanguProMoEV2ForCausalLM(Glm4MoeForCausalLM):
    """GLM-4.5 with such norms."""

    config_class = PanguProConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        _normalize_outputs(self)


def _normalize_outputs(model: Any) -> None:
    for layer in model.model.layers:
        for half in (layer.self_attn, layer.mlp):
            half.after = DeepseekV3RMSNorm(model.config.hidden_size, model.config.rms_norm_eps)
            half.register_forward_hook(_normalize)


def _normalize(half: Any, _: Any, output: Any) -> Any:
    if isinstance(output, tuple):
        return half.after(output[0]), *output[1:]
    return half.after(output)


class Step3p5ForCausalLM(Step3p7PreTrainedModel):
    """The text of Step 3.7."""

    config_class = Step3p7TextConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = Step3p7TextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        """``input_ids`` [1, n]; logits [1, n, words]."""
        return CausalLMOutput(logits=self.lm_head(self.model(input_ids).last_hidden_state))


class Step3TextForCausalLM(Glm4MoeForCausalLM):
    """GLM-4.5 with queries by way of a latent, and another router."""

    config_class = Step3Config

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width = config.share_q_dim
        for layer in self.model.layers:
            layer.self_attn.q_proj = torch.nn.Sequential(
                torch.nn.Linear(config.hidden_size, width, bias=False),
                DeepseekV3RMSNorm(width, config.rms_norm_eps),
                torch.nn.Linear(width, config.num_attention_heads * config.head_dim, bias=False),
            )
        for layer in self.model.layers[config.first_k_dense_replace :]:
            layer.mlp.gate = PlainRouter(config)


class PlainRouter(SoftmaxRouter):
    """Probabilities as they are."""

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``hidden_states`` [..., hidden]; logits, weights and numbers of each token's experts."""
        logits, _, chosen = super().forward(hidden_states)
        return logits, logits.softmax(-1).gather(-1, chosen), chosen


class NemotronHPuzzleForCausalLM(NemotronHForCausalLM):
    """Nemotron-H."""

    config_class = NemotronPuzzleConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for i, layer in enumerate(self.model.layers):
            of_layer = config.get_nemotron_h_config_for_layer(i)
            self.model.layers[i] = type(layer)(of_layer, i)
