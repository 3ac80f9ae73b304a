"""Models that read a prompt in both directions and write forwards: prefix language models.

Every token of a prompt attends to all of it, every later one to what is before it (Raffel et al.
2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 3.2.1).
So the prompt is one span (spans.py), also where a request that was preempted computes its answer
anew, and where a step has drafts.  A part of a prompt cannot be computed before the rest has come,
nor taken from a request with another one.

The host has such layers for HRM-Text, whose steps are not causal at all, so that drafts and the
answers of preempted requests would see what comes after them.  It lets PaliGemma's and ColPali's
images alone see themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from cpu_backend.attention.spans import Ranges
from cpu_backend.errors import ConfigError

logger = logging.getLogger("vllm.cpu_backend")

KINDS = ("colpali", "hrm_text", "paligemma")  # model_type


def has(model: Any) -> bool:
    """Whether a model, the host's ModelConfig, is one of these."""
    return model is not None and model.hf_config.model_type in KINDS


def check(model: Any, spec: Any) -> None:
    """Raise ConfigError where layers of another model, by the host's KVCacheSpec, read prompts so:
    they would be scheduled in parts."""
    if getattr(spec, "non_causal", False) and not has(model):
        raise ConfigError(
            f"{model.architecture} reads prompts in both directions, and is not among the models "
            f"for which cpu_backend schedules them whole ({', '.join(KINDS)}): choose one of those "
            "or another model."
        )


def window(model: Any) -> int | None:
    """The sliding window of such a model (PaliGemma 2), beyond which a prompt would have to see
    itself, and its answer would not."""
    return getattr(model.hf_text_config, "sliding_window", None) if has(model) else None


def spans(lengths: Sequence[int]) -> Ranges:
    """The spans of requests whose prompts have these ``lengths``."""
    return {request: [(0, length - 1)] for request, length in enumerate(lengths)}


def keep(config: Any) -> None:
    """Prompts are scheduled whole and never from the prefix cache, the longest one beside answers
    of all other requests.  config: the host's VllmConfig."""
    scheduler, cache = config.scheduler_config, config.cache_config
    text = config.model_config.hf_text_config
    if getattr(text, "use_bidirectional_attention", False):  # what else only_with.py refuses
        text.use_bidirectional_attention = False
    drafts = config.num_speculative_tokens
    longest = config.model_config.max_model_len + scheduler.max_num_seqs * (1 + drafts)
    tokens = scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens
    missing = max(0, longest - tokens)
    if scheduler.enable_chunked_prefill or cache.enable_prefix_caching or missing:
        logger.info(
            "cpu_backend: %s reads prompts in both directions: chunked prefill and prefix caching "
            "are off, and a step takes up to %d tokens.",
            config.model_config.architecture,
            tokens + missing,
        )
    scheduler.enable_chunked_prefill = cache.enable_prefix_caching = False
    scheduler.disable_chunked_mm_input = True
    scheduler.long_prefill_token_threshold = 0
    scheduler.max_num_batched_tokens += missing
    if scheduler.max_num_scheduled_tokens:
        scheduler.max_num_scheduled_tokens += missing
