"""Every prompt that is accepted fits in a step, where a model cannot read it in pieces.

What: ``_initialize_kv_caches`` raises ConfigError where steps are shorter than prompts may be.
Why: the host checks that before the model is built, and learns of such layers afterwards: a longer
    prompt would wait for ever, and all others behind it.
Since: 0.32
Until: it looks again afterwards.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.errors import ConfigError
from cpu_backend.host.seam import patch


@patch("vllm.v1.engine.core", "EngineCore._initialize_kv_caches(self, vllm_config)")
def initialize(original: Any) -> Any:
    """And compare."""

    def initialize_kv_caches(self: Any, vllm_config: Any) -> Any:
        result = original(self, vllm_config)
        scheduler, model = vllm_config.scheduler_config, vllm_config.model_config
        step = scheduler.max_num_batched_tokens
        if not scheduler.enable_chunked_prefill and step < model.max_model_len:
            raise ConfigError(
                f"{model.architecture} reads a prompt in one step, and steps of {step} tokens are "
                f"shorter than --max-model-len {model.max_model_len}: set --max-num-batched-tokens "
                "to as much, or lower --max-model-len."
            )
        return result

    return initialize_kv_caches
