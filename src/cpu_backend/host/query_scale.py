"""Ministral 3's queries grow with their position, whatever file says so.

What: the attention layers find ``llama_4_scaling_beta`` of ``rope_parameters``, where config.json
    has it.
Why: the host reads what params.json has, Mistral's own format; without it, answers are wrong from
    the 16,384th token on.
Since: 0.30
Until: it reads both.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch

MISTRAL = "vllm.model_executor.models.mistral"


@patch(MISTRAL, "MistralAttention.__init__(self, config, ...)")
def with_scale(original: Any) -> Any:
    """As ``transformers`` has it: 1 + beta * log(1 + position // original length)."""

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        rope = getattr(config, "rope_parameters", None) or {}
        if "llama_4_scaling_beta" in rope and not hasattr(config, "llama_4_scaling"):
            config.llama_4_scaling = {
                "beta": rope["llama_4_scaling_beta"],
                "original_max_position_embeddings": rope["original_max_position_embeddings"],
            }
        original(self, config, *args, **kwargs)

    return __init__
