"""Which ways of speculative decoding run here, and the words for them."""

from __future__ import annotations

from typing import Any

from cpu_backend import architectures
from cpu_backend.errors import ConfigError
from cpu_backend.host.seam import Hosts
from cpu_backend.host.source import host

METHODS = ("ngram", "suffix", "draft_model", "eagle", "eagle3", "mtp")
# Heads that the host runs by code of their own, which nobody has tried here.
_OWN_PROPOSERS = ("gemma4_mtp", "step3p5_mtp")
# Where the host's own layers do not find their weights, or do not fit what calls them.
_BROKEN = ("OpenPanguMTPModel",)
# Refused before weights are read; attention/states.py refuses all that have such layers.
_MAMBA_1 = ("JambaForCausalLM",)
# These do not say in every step how many drafts of the one before were accepted.
_WITHOUT_COUNTS = Hosts(until=(0, 32))
MAMBA_1_STATES = (
    "speculative decoding is not supported for models with Mamba layers of the first kind, for "
    "which the host keeps no states of drafts: leave --speculative-config out."
)


def check(config: Any) -> None:
    """Refuse what does not run, before anything is loaded.

    config: the host's VllmConfig.  Raises ConfigError.
    """
    speculation = config.speculative_config
    if speculation is None:
        return
    beside = {
        "--enable-lora": config.lora_config is not None,
        "--pipeline-parallel-size": config.parallel_config.pipeline_parallel_size > 1,
    }
    for option in (option for option, given in beside.items() if given):
        raise ConfigError(
            f"{option} beside --speculative-config is not supported on the CPU yet: "
            "leave one of them out."
        )
    if speculation.method not in METHODS:
        raise ConfigError(
            f"drafts by {speculation.method} are not supported on the CPU: choose the method "
            f"{', '.join(METHODS[:-1])} or {METHODS[-1]} of --speculative-config."
        )
    target = speculation.target_model_config
    if target is not None and target.has_inner_state and not target.is_hybrid:
        raise ConfigError(
            f"speculative decoding is not supported for {target.architecture}, whose layers all "
            "have a recurrent state: leave --speculative-config out."
        )
    if target is not None and target.architecture in _MAMBA_1:
        raise ConfigError(MAMBA_1_STATES)
    if target is not None and target.has_inner_state and host() in _WITHOUT_COUNTS:
        raise ConfigError(
            f"speculative decoding of {target.architecture}, whose layers have recurrent states, "
            "needs vLLM 0.32 or later: leave --speculative-config out."
        )
    refused = {
        "rejection_sample_method": speculation.rejection_sample_method != "standard",
        "parallel_drafting": speculation.parallel_drafting,
        "use_heterogeneous_vocab": speculation.use_heterogeneous_vocab,
        "num_speculative_tokens_per_batch_size": speculation.uses_dynamic_speculative_decoding(),
    }
    for name in (name for name, given in refused.items() if given):
        raise ConfigError(
            f"{name} of --speculative-config is not supported on the CPU yet: leave it out."
        )
    if speculation.uses_draft_kv_cache():
        draft = speculation.draft_model_config
        if draft.has_inner_state:
            raise ConfigError(
                f"drafts by {draft.architecture}, whose layers have a recurrent state, are not "
                "supported: choose another draft model, or the method ngram."
            )
        if draft.hf_config.model_type in _OWN_PROPOSERS or draft.architecture in _BROKEN:
            raise ConfigError(
                f"drafts by {draft.architecture} are not supported on the CPU yet: "
                "choose another draft model, or the method ngram."
            )
        architectures.check_layers(draft)


def describe(speculation: Any) -> str:
    """For the start-up line: how many tokens are drafted, and by what."""
    by = {
        "ngram": "from the request's own text (ngram)",
        "suffix": "from the text of requests (suffix)",
        "mtp": "by the model's own heads (mtp)",
    }
    tokens = speculation.num_speculative_tokens
    how = by.get(speculation.method) or f"by {speculation.model} ({speculation.method})"
    return f"speculative decoding: up to {tokens} token{'' if tokens == 1 else 's'} drafted {how}"
