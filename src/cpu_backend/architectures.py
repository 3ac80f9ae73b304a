"""Which of the host's model classes run here: refused by name, compared, or not yet known."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpu_backend import only_with
from cpu_backend.errors import ConfigError
from cpu_backend.host import model_classes

logger = logging.getLogger("vllm.cpu_backend")  # under the host's logger, so it is seen

# Those that tests/zoo found right, and the kinds of media that their requests had there; it fails
# if this list is not its own.
_LINES = (Path(__file__).parent / "compared.txt").read_text().splitlines()
COMPARED = {name: frozenset(media) for name, *media in map(str.split, _LINES)}
# What Kimi K3 has besides, in the words of the config of Kimi Linear and of its linear_attn_config.
KIMI_K3 = ("attn_res_block_size", "routed_expert_hidden_size", "mla_use_output_gate")
KIMI_K3_LINEAR = ("use_full_rank_gate", "gate_lower_bound")
# Both have configs of the type "bailing_hybrid", and transformers from 5.20 on has one of them.
LING_2_5, LING_3 = "BailingMoeV2_5ForCausalLM", "transformers.models.bailing_hybrid"
# Those whose LoRA adapters the host computes wrongly, or fails for without words, as
# tests/zoo/adapters.py found.
WITHOUT_ADAPTERS = (
    "GPTBigCodeForCausalLM",
    "K2HorizonForCausalLM",
    "Mamba2ForCausalLM",
    "Zamba2ForCausalLM",
)
# Those that tests/zoo/ranks.py found wrong in stages of a pipeline: layers need what another stage
# has, positions are added once more in each, the host runs or ties layers that a stage does not
# have, cuts a tower, too, or clears an image's features before it sends them.
WITHOUT_STAGES = (
    "Ernie4_5_VLMoeForConditionalGeneration",
    "GPTBigCodeForCausalLM",
    "GlmMoeDsaForCausalLM",
    "Granite4VisionForConditionalGeneration",
    "GraniteMoeHybridForCausalLM",
    "SolarForCausalLM",
    "VoxtralForConditionalGeneration",
)
# Those whose layers, as it found or the host says, do not know that each rank has a part of the
# heads.
WITHOUT_HALVES = (
    "ColBERTModernBertModel",
    "ColModernVBertForRetrieval",
    "DoryForCausalLM",
    "ModernBertForSequenceClassification",
    "ModernBertForTokenClassification",
    "ModernBertModel",
)
# Those whose indexer attention/sparse.py has.
SPARSE = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
# Those that the host has and cannot compute on a CPU, or computes wrongly, and what they do.
NOT_ON_CPUS = {
    "AriaForConditionalGeneration": "lets an image's patches see the padding of one that is no "
    "square in this vLLM",
    "DiffusionGemmaForBlockDiffusion": "writes blocks of text at a time, by diffusion, which this "
    "vLLM has for its V2 model runner alone",
    "LongcatFlashNgramForCausalLM": "embeds n-grams of tokens by a kernel that this vLLM has for "
    "GPUs alone",
    "MoonshotKimiaForCausalLM": "hears one sound in a step and passes over those of other requests "
    "in this vLLM",
    "Phi4MMForCausalLM": "lets an image's patches see what fills it up in this vLLM",
    "Rnj1ForCausalLM": "attends within chunks and to the one before, which this vLLM has for GPUs "
    "alone",
    "Step1ForCausalLM": "adds square roots of distances to scores, which cpu_backend does not have",
    "UnlimitedOCRForCausalLM": "attends to its prompt and to the last tokens of its answer alone, "
    "which cpu_backend does not have",
}
NOT_COMPARED = (
    "cpu_backend: %s has not been compared with transformers on this backend (docs/models.md lists "
    "what has): hold a few answers against another engine's before you rely on it."
)

NOT_COMPARED_MEDIA = (
    "cpu_backend: %s takes requests with %s, too, which have not been compared with transformers "
    "on this backend: hold a few answers against another engine's before you rely on them."
)


def check(model: Any) -> None:
    """Refuse a model that would answer wrongly or not at all, before its weights are read; say it
    of one that nobody has compared.

    model: the host's ModelConfig.  Raises ConfigError.
    """
    if does := NOT_ON_CPUS.get(model.architecture):
        raise ConfigError(f"{model.architecture} {does}: choose another model.")
    check_layers(model)
    kind = model.hf_config.model_type
    if kind == "hrm_text" and not model.hf_config.prefix_lm:
        raise ConfigError(
            f"{model.architecture} reads prompts in both directions here, and this one's "
            "config.json (prefix_lm) says forwards alone: choose another model."
        )
    if model.architecture == LING_2_5 and type(model.hf_config).__module__.startswith(LING_3):
        raise ConfigError(
            "Beside this transformers the config.json of Ling 2.5 is read as that of Ling 3: add "
            "--trust-remote-code, so that the checkpoint's own code reads it."
        )
    only_with.check(model)
    if kind == "kimi_linear":
        _check_kimi_linear(model)
    if not is_compared(model.architecture):
        _warn(model.architecture)
    if model.architecture == "MiniCPMV" and getattr(model.hf_config, "version", None) is None:
        _warn("MiniCPMV before version 2.6")


def _check_kimi_linear(model: Any) -> None:
    config = model.hf_config
    linear = config.linear_attn_config or {}
    found = [name for name in KIMI_K3 if getattr(config, name, None)]
    found += [name for name in KIMI_K3_LINEAR if linear.get(name)]
    if found:
        raise ConfigError(
            f"{model.architecture} has layers of Kimi K3 ({', '.join(found)} in its config.json), "
            "which cpu_backend does not have: choose another model."
        )


def check_layers(model: Any) -> None:
    """Refuse a model, or a draft model, whose layers this backend does not have."""
    if hasattr(model.hf_text_config, "index_topk") and model.architecture not in SPARSE:
        raise ConfigError(
            f"{model.architecture} needs sparse attention, whose indexer picks the tokens to "
            f"attend to, which cpu_backend has for {' and '.join(SPARSE)} alone: choose one of "
            "them or another model."
        )
    if model.use_mla and model.using_transformers_backend():
        raise ConfigError(
            f"{model.architecture} has latent attention, which vLLM's --model-impl transformers "
            "computes by kernels for GPUs: leave --model-impl at auto, or choose another model."
        )
    if (model.has_inner_state or model.is_hybrid) and model.architecture not in COMPARED:
        raise ConfigError(
            f"{model.architecture} has layers with a recurrent state, and is not among the models "
            "with such layers that cpu_backend has been compared with transformers on "
            "(docs/models.md): choose one of those."
        )


def check_class(architecture: str) -> None:
    """Refuse a class that the host has for GPUs alone, before its module, which may need packages
    for GPUs, is imported.  Those that run here were compared."""
    if model_classes.is_for_gpus(architecture) and not is_compared(architecture):
        raise ConfigError(
            f"{architecture} is written for GPUs in this vLLM, with kernels that cpu_backend does "
            "not have: choose another model."
        )


def check_ranks(architecture: str, parallel: Any) -> None:
    """Refuse a model that cannot be cut as asked; parallel: the host's ParallelConfig."""
    names = _names(architecture)
    stages, ranks = parallel.pipeline_parallel_size, parallel.tensor_parallel_size
    if stages > 1 and any(name in WITHOUT_STAGES for name in names):
        raise ConfigError(
            f"{architecture} cannot be computed in stages: use -tp {stages} instead of "
            f"-pp {stages}."
        )
    if ranks > 1 and any(name in WITHOUT_HALVES for name in names):
        raise ConfigError(
            f"{architecture} cannot be cut between ranks: use -dp {ranks}, which starts {ranks} "
            f"engines, instead of -tp {ranks}."
        )


@functools.cache  # the host makes several configurations of a model
def _warn(architecture: str) -> None:
    logger.warning(NOT_COMPARED, architecture)


def is_compared(architecture: str) -> bool:
    """Whether a model of that name is among those compared, or of the same class as one."""
    return any(name in COMPARED for name in _names(architecture))


def tell_media(architecture: str, limits: Mapping[str, int]) -> None:
    """Say which kinds of media of a compared model nobody has compared.

    limits: how many of each kind this server takes in a request.
    """
    compared = [COMPARED[name] for name in _names(architecture) if name in COMPARED]
    taken = {kind for kind, limit in limits.items() if limit}
    others = taken.difference(*compared) if compared else ()
    if others:
        logger.warning(NOT_COMPARED_MEDIA, architecture, " and ".join(sorted(others)))


def _names(architecture: str) -> tuple[str, str]:
    """Its own and that of its class."""
    return architecture, model_classes.class_of(architecture)
