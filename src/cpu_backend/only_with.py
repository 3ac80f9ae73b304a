"""Fields of a config.json with which the host answers right for some of their values alone.

Its classes pass over such a field, or have what it asks for on GPUs alone.  Those that differ from
``transformers`` were found by giving each field of each small model another value, one at a time
(tests/zoo/fields.py), the others by reading the host's class.  A number that a norm adds, 1e-6 or
1e-5, makes no difference that is worth a refusal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cpu_backend.errors import ConfigError
from cpu_backend.host import model_classes
from cpu_backend.host.source import host

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Limit:
    """``classes`` of the host, or architectures that share one with others, or all where none is
    named, answer right where ``field`` of their config (a name with dots: of a part of it) has one
    of ``values`` or is not there; unless: or where another field has this value or is not there;
    generating: or where they do not generate."""

    field: str
    values: tuple[Any, ...]
    classes: str
    unless: tuple[str, Any] | None = None
    generating: bool = False

    def found(self, config: Any) -> Any:
        """What ``config`` has instead; None if nothing else."""
        if self.unless and _get(config, self.unless[0]) in (None, self.unless[1]):
            return None
        value = _get(config, self.field)
        return None if value in self.values else value


def _get(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config.get(name) if isinstance(config, dict) else getattr(config, name, None)
    return tuple(config) if isinstance(config, list) else config


SILU = ("silu", "swish")
DEEPSEEK = (
    "AXK1ForCausalLM DeepseekV2ForCausalLM DeepseekV32ForCausalLM DeepseekV3ForCausalLM "
    "Glm4MoeLiteForCausalLM GlmMoeDsaForCausalLM LongcatFlashForCausalLM"
)
GPT2 = "GPT2ForSequenceClassification GPT2LMHeadModel"
LIMITS = (
    # Many classes ask what their experts compute, or all of their layers, nobody.
    Limit(
        "hidden_act",
        SILU,
        "BailingMoeForCausalLM BailingMoeV25ForCausalLM BailingMoeV2ForCausalLM "
        "Cohere2MoeForCausalLM CohereForCausalLM GraniteMoeForCausalLM Llama4ForCausalLM "
        "Mamba2ForCausalLM MambaForCausalLM MiniMaxM2ForCausalLM MixtralForCausalLM "
        "OlmoHybridForCausalLM OlmoeForCausalLM Param2MoEForCausalLM PhiMoEForCausalLM "
        "Qwen3MoeForCausalLM SarvamMLAForCausalLM SarvamMoEForCausalLM StablelmForCausalLM "
        "Step3TextForCausalLM TransformersMoEForCausalLM",
    ),
    Limit("hidden_act", ("gelu", "gelu_pytorch_tanh"), "GemmaForCausalLM"),
    Limit("hidden_activation", ("gelu_pytorch_tanh",), "Gemma4ForCausalLM"),
    Limit("hidden_act", ("gelu",), "BertSpladeSparseEmbeddingModel ColBERTJinaRobertaModel"),
    Limit("text_config.hidden_act", SILU, "CohereCompassForConditionalGeneration"),
    Limit("activation", ("gelu",), "FalconForCausalLM"),
    Limit("mlp_hidden_act", ("relu2",), "NemotronHForCausalLM"),
    Limit("mamba_hidden_act", SILU, "NemotronHForCausalLM"),
    Limit("swiglu_alpha", (1.702,), "GptOssForCausalLM OpenAIPrivacyFilterForTokenClassification"),
    Limit("classifier_activation", ("gelu",), "ModernBertForSequenceClassification"),
    Limit(
        "vision_config.hidden_act",
        SILU,
        "Glm4vForConditionalGeneration Glm4vMoeForConditionalGeneration "
        "GlmOcrForConditionalGeneration",
    ),
    Limit("text_config.hidden_act", SILU, "Qwen3VLMoeForConditionalGeneration"),
    Limit("thinker_config.text_config.hidden_act", SILU, "Qwen3OmniMoeForConditionalGeneration"),
    Limit("vision_config.hidden_act", ("gelu",), "MuseGlimmerForConditionalGeneration"),
    Limit(
        "projector_hidden_act",
        ("gelu",),
        "MuseGlimmerForConditionalGeneration QianfanOCRForConditionalGeneration",
    ),
    # The table of tokens as the head, or a head of its own.
    Limit(
        "tie_word_embeddings",
        (True,),
        "Cohere2MoeForCausalLM CohereForCausalLM Lfm2ForCausalLM Lfm2MoeForCausalLM "
        "WhisperForConditionalGeneration Zamba2ForCausalLM",
    ),
    Limit("tie_word_embeddings", (False,), "GPTJForCausalLM"),
    # Rotary embeddings: of latent attention those of DeepSeek, in pairs of neighbors.
    Limit(
        "rope_parameters.rope_type",
        ("default", "yarn", "deepseek_yarn", "deepseek_llama_scaling"),
        DEEPSEEK,
    ),
    Limit("rope_parameters.rope_type", ("default",), "GlmMoeDsaForCausalLM"),
    Limit("rope_interleave", (True,), DEEPSEEK),
    Limit("rope_parameters.attention_factor", (None,), DEEPSEEK),
    Limit("rope_parameters.truncate", (None, True), DEEPSEEK),
    Limit("rope_parameters.mscale_all_dim", (None, 0), "MiniCPM3ForCausalLM"),
    Limit(
        "rope_parameters.rope_type",
        ("yarn",),
        "GptOssForCausalLM OpenAIPrivacyFilterForTokenClassification",
    ),
    Limit(
        "rope_parameters.rope_type",
        ("default", "dynamic", "ntk"),
        "GteNewForSequenceClassification GteNewModel",
    ),
    Limit(
        "text_config.rope_parameters.rope_type",
        ("default", "yarn", "deepseek_yarn"),
        "KimiK25ForConditionalGeneration",
    ),
    # With positions in several directions; with dynamic it has not been tried.
    Limit(
        "rope_parameters.rope_type",
        ("default", "yarn", "dynamic", "mrope", "xdrope", "bailing_mrope", "openpangu"),
        "",
        unless=("rope_parameters.mrope_section", None),
    ),
    # LongRoPE's, which the host makes of both lengths.
    Limit(
        "rope_parameters.attention_factor",
        (None,),
        "",
        unless=("rope_parameters.long_factor", None),
    ),
    Limit("rope_parameters.factor", (None,), "", unless=("rope_parameters.long_factor", None)),
    # Rotary embeddings of encoders.
    Limit("audio_config.rope_parameters.rope_type", ("default",), "GlmAsrForConditionalGeneration"),
    Limit(
        "vision_config.rope_parameters.rope_theta",
        (10000.0,),
        "Ernie4_5_VLMoeForConditionalGeneration Exaone4_5_ForConditionalGeneration "
        "Glm4vForConditionalGeneration Glm4vMoeForConditionalGeneration "
        "GlmOcrForConditionalGeneration KimiK25ForConditionalGeneration "
        "MuseGlimmerForConditionalGeneration OpenCUAForConditionalGeneration "
        "Qwen2_5_VLForConditionalGeneration Qwen3VLForConditionalGeneration "
        "Qwen3VLMoeForConditionalGeneration Qwen3_5ForConditionalGeneration "
        "Qwen3_5MoeForConditionalGeneration",
    ),
    Limit(
        "thinker_config.vision_config.rope_parameters.rope_theta",
        (10000.0,),
        "Qwen3OmniMoeForConditionalGeneration",
    ),
    Limit(
        "rope_parameters.rope_type", ("default",), "PanguUltraMoEForCausalLM Param2MoEForCausalLM"
    ),
    Limit("rope_parameters.rope_theta", (10000.0,), "Param2MoEForCausalLM"),
    Limit("rope_theta", (10000.0,), "Param2MoEForCausalLM"),
    Limit("partial_rotary_factor", (1.0,), "Param2MoEForCausalLM"),
    # Attention.
    Limit(
        "use_bidirectional_attention",
        (False,),
        "Gemma2ForCausalLM Gemma3ForCausalLM GemmaForCausalLM",
        generating=True,
    ),
    Limit("use_sliding_window", (False,), "Qwen2MoeForCausalLM"),
    Limit("clip_qkv", (), "OlmoeForCausalLM"),
    Limit("multi_query", (True,), "GPTBigCodeForCausalLM"),
    Limit("scale_attn_weights", (True,), GPT2),
    Limit("scale_attn_by_inverse_layer_idx", (False,), GPT2),
    Limit("add_cross_attention", (False,), GPT2),
    Limit("qk_layernorm", (False,), "StablelmForCausalLM"),
    Limit("use_parallel_residual", (False,), "StablelmForCausalLM"),
    Limit("param_sink_number", (0,), "PanguProMoEV2ForCausalLM PanguUltraMoEForCausalLM"),
    # Routers and experts.
    Limit("norm_topk_prob", (False,), "OlmoeForCausalLM"),
    Limit("routed_scaling_factor", (1.0,), "MiMoV2FlashForCausalLM MiMoV2ForCausalLM"),
    Limit("router_jitter_noise", (0.01,), "PhiMoEForCausalLM"),
    Limit(
        "topk_method",
        ("group_limited_greedy", "noaux_tc"),
        "DeepseekV2ForCausalLM",
        unless=("n_group", 1),
    ),
    Limit("mova_num_experts", (0,), "K2HorizonForCausalLM"),
    Limit("ffn_config.ffn_act_fn.name", SILU, "DbrxForCausalLM"),
    Limit("ffn_config.moe_normalize_expert_weights", (1.0,), "DbrxForCausalLM"),
    # Tokens of earlier steps by the last loop: answers would depend on how prompts are cut.
    Limit(
        "recurrent_kv_cache_mode",
        ("per_loop",),
        "DoryForCausalLM",
        unless=("n_recurrent_loops", 1),
    ),
    # States.
    Limit("time_step_limit", ((0.0, float("inf")),), "Mamba2ForCausalLM"),
    Limit(
        "mamba_norm_before_gate",
        (False,),
        "FalconH1ForCausalLM",
        unless=("mamba_rms_norm", False),
    ),
    Limit("input_mult", (1.0,), "TeleFLMForCausalLM"),
    # What of an encoder's layers a model reads.
    Limit(
        "vision_feature_layer",
        (-1,),
        "InternS1ForConditionalGeneration InternVLForConditionalGeneration "
        "QianfanOCRForConditionalGeneration",
    ),
)


# Classes that releases of the host before this one compute wrongly whatever the config, as
# tests/zoo found beside them.
RIGHT_SINCE = {
    "BailingMoeV25ForCausalLM": "0.31",
    "Exaone4_5_ForConditionalGeneration": "0.31",
    "K2HorizonForCausalLM": "0.31",
    "MistralLarge3ForCausalLM": "0.31",
    "NemotronH_Super_Omni_Reasoning_V3": "0.32",
    "Param2MoEForCausalLM": "0.31",
    "Qwen3OmniMoeForConditionalGeneration": "0.32",
}
# The same of their videos alone, whose time the host does not read.
VIDEOS_RIGHT_SINCE = {"Qwen2_5_VLForConditionalGeneration": "0.31"}


def check(model: Any) -> None:
    """Raise ConfigError where the host would answer wrongly by the config.json of ``model``, its
    ModelConfig."""
    names = (model.architecture, model_classes.class_of(model.architecture))
    _check(names, model.hf_config, model.runner_type)
    release = _release_needed(names, VIDEOS_RIGHT_SINCE)
    if release and model.multimodal_config.get_limit_per_prompt("video"):
        raise ConfigError(
            f"{names[0]} would answer wrongly to videos with this release of vLLM: start with "
            f"--limit-mm-per-prompt.video 0, or install vLLM {release} or a later release."
        )


def check_parts(module: torch.nn.Module, runner: str) -> None:
    """The same of the models in a model, of texts in one of images, by the configs they have."""
    for part in module.modules():
        if config := getattr(part, "config", None):
            _check((type(part).__name__,), config, runner)


def _release_needed(names: tuple[str, ...], since: dict[str, str]) -> str:
    """The host's first that computes one of ``names`` rightly; empty if this one does."""
    for name in since.keys() & names:
        if host().release < tuple(map(int, since[name].split("."))):
            return since[name]
    return ""


def _check(names: tuple[str, ...], config: Any, runner: str) -> None:
    if release := _release_needed(names, RIGHT_SINCE):
        raise ConfigError(
            f"{names[0]} would be answered wrongly by this release of vLLM: install vLLM {release} "
            "or a later release."
        )
    for limit in LIMITS:
        if limit.classes and not set(names) & set(limit.classes.split()):
            continue
        if limit.generating and runner != "generate":
            continue
        found = limit.found(config)
        if found is not None:
            right = " or ".join(map(str, limit.values)) or "none"
            raise ConfigError(
                f"{names[0]} with {limit.field} {found} in its config.json would answer wrongly "
                f"or not at all, because on a CPU the host runs it with {right} alone: choose "
                "another model."
            )
