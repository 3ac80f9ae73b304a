"""Embeddings and weights of tokens asked for at once are what each is alone.

What: ``PoolingParams.verify`` sets ``use_activation`` for "embed&token_classify" too, to the pooler
    config's or else to True.
Why: the host says that None means the pooler's default, and sets it for single tasks alone; of
    BGE-M3 both at once came without their length of 1, and weights below 0.
Since: 0.32
Until: the host has the same default for it.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch

BOTH = "embed&token_classify"


@patch("vllm.pooling_params", "PoolingParams.verify(self, model_config)")
def activate(original: Any) -> Any:
    """Where the request leaves it open."""

    def verify(self: Any, model_config: Any) -> None:
        if self.task == BOTH and self.use_activation is None:
            default = getattr(model_config.pooler_config, "use_activation", None)
            self.use_activation = True if default is None else default
        original(self, model_config)

    return verify
