"""Queries of Ministral 3 and Llama 4 grow with their position, as config.json says.

What: Ministral 3's attention layers find ``llama_4_scaling_beta`` of ``rope_parameters``; Llama 4
    keeps the config's ``attn_temperature_tuning`` unless the generation config has another.
Why: the host reads the first only from params.json, Mistral's own format, and switches the second
    off where requests are no longer than 32,768 tokens; answers were wrong from the 16,384th and
    the 8,192nd token on.
Since: 0.30
Until: it does both.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch

MISTRAL = "vllm.model_executor.models.mistral"
LLAMA4 = "vllm.model_executor.models.llama4"
TUNING = "attn_temperature_tuning"


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


@patch(LLAMA4, "Llama4ForCausalLM.__init__(self, *, vllm_config, prefix)")
def as_configured(original: Any) -> Any:
    """With the config's value where the host would take its default."""

    def __init__(self: Any, *, vllm_config: Any, prefix: str = "") -> None:  # noqa: N807
        model = vllm_config.model_config
        own = getattr(model.hf_config, TUNING, None)
        if own is not None and TUNING not in model.try_get_generation_config():
            model.override_generation_config.setdefault(TUNING, own)
        original(self, vllm_config=vllm_config, prefix=prefix)

    return __init__
