"""No request is longer than the tables of the model's rotary embeddings.

The host reads a table at each token's position without looking where it ends.  With
``rope_type`` "dynamic" (Dynamic NTK) it takes requests that are ``factor`` times as long as the
table, whose angles ``transformers`` makes anew for each length; within the table they are the same.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from cpu_backend.errors import ConfigError

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("vllm.cpu_backend")


def shorten(config: Any) -> None:
    """With Dynamic NTK, requests are as long as the table unless the user says how long.

    config: the host's VllmConfig.
    """
    model = config.model_config
    text = model.hf_text_config
    rotary = getattr(text, "rope_parameters", None) or {}
    if model.original_max_model_len not in (None, -1) or rotary.get("rope_type") != "dynamic":
        return
    positions = getattr(text, "max_position_embeddings", model.max_model_len)
    if "alpha" not in rotary and model.max_model_len > positions:
        logger.warning(
            "cpu_backend: requests are limited to %d tokens, as far as %s answers right: for "
            "longer ones Dynamic NTK (rope_type dynamic) is scaled by their length, which vLLM "
            "does not do.",
            positions,
            model.architecture,
        )
        model.max_model_len = positions


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
