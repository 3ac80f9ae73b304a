"""No request is longer than the model's table of positions is right for.

The host reads a table at each token's position without looking where it ends.  With
``rope_type`` "dynamic" (Dynamic NTK) it takes requests that are ``factor`` times as long as the
table, whose angles ``transformers`` makes anew for each length; within the table they are the same.
RoBERTa's positions begin behind that of padding, and its table ends with rows that no model has
learned, as the host fills it up.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from cpu_backend.attention import whole_prompts
from cpu_backend.errors import ConfigError

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("vllm.cpu_backend")

BEHIND_PADDING = ("roberta", "camembert", "data2vec-text")  # parts of model_type


def shorten(config: Any) -> None:
    """Requests end where the model's positions do, unless the user says how long.

    config: the host's VllmConfig.  Raises ConfigError where the user asks for more than a model
    with dual chunks, with windows in whole prompts or with RoBERTa's positions answers right;
    ``check`` does where a table of rotary embeddings says it.
    """
    model = config.model_config
    asked = model.original_max_model_len not in (None, -1)
    if chunk := _without_dual_chunks(model):
        longest, need = chunk, "dual chunk attention, which this backend does not have"
    elif window := whole_prompts.window(model):
        longest, need = window, "prompts that see beyond a window, which this backend does not have"
    elif behind := _positions_behind_padding(model):
        longest, need = behind, "more positions, of which its table leaves the first ones unused"
    elif not asked and (positions := _dynamic_positions(model)):
        longest, need = positions, "rope_type dynamic scaled by their length, which vLLM has not"
    else:
        return
    if model.max_model_len > longest:
        if asked:
            raise ConfigError(
                f"{model.architecture} answers requests of up to {longest} tokens right: longer "
                f"ones need {need}, so give --max-model-len {longest} or less."
            )
        logger.warning(
            "cpu_backend: requests are limited to %d tokens, as far as %s answers right: longer "
            "ones need %s.",
            longest,
            model.architecture,
            need,
        )
        model.max_model_len = longest


def _without_dual_chunks(model: Any) -> int | None:
    """The length up to which dual chunks (Qwen2.5-1M) change nothing, if the model has them; its
    config no longer has, so that the host makes the usual layers.

    Tokens of the first chunk attend as usual.  One of the second sees its distance from a token of
    the first unless that is ``chunk_size`` or more (An et al. 2024, "Training-Free Long-Context
    Scaling of Large Language Models"); the logits are scaled beyond the original length.
    """
    longest = None
    for config in (model.hf_config, model.hf_text_config):
        if chunks := getattr(config, "dual_chunk_attention_config", None):
            lengths = (chunks.get("chunk_size"), chunks.get("original_max_position_embeddings"))
            longest = min(length for length in lengths if length)
            del config.dual_chunk_attention_config
    return longest


def _dynamic_positions(model: Any) -> int | None:
    """The positions that Dynamic NTK's table has, if the model has one of them."""
    text = model.hf_text_config
    rotary = getattr(text, "rope_parameters", None) or {}
    if rotary.get("rope_type") != "dynamic" or "alpha" in rotary:
        return None
    return getattr(text, "max_position_embeddings", None)


def _positions_behind_padding(model: Any) -> int | None:
    """The positions that RoBERTa and its kin have for tokens, if the model is one of them: those
    behind that of padding."""
    text = model.hf_text_config
    learned = getattr(text, "position_embedding_type", "absolute") == "absolute"
    if not learned or not any(name in text.model_type for name in BEHIND_PADDING):
        return None
    positions: int = text.max_position_embeddings - text.pad_token_id - 1
    return positions


def check(model: torch.nn.Module, longest: int) -> None:
    """Raise ConfigError where requests of ``longest`` tokens are longer than a table of
    ``model``."""
    find = getattr(model, "get_language_model", None)
    for module in (find() if find else model).modules():
        table = getattr(module, "cos_sin_cache", None)  # the host's name in all of its classes
        if table is not None and len(table) < longest:
            raise ConfigError(
                f"requests of {longest} tokens are longer than the {len(table)} positions of "
                f"{type(model).__name__}: give --max-model-len {len(table)} or less."
            )
