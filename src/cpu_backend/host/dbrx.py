"""DBRX finds the weights of its experts.

What: names in checkpoints say where the experts' weights are since they are layers of their own.
Why: the host looks for them by the name before, and ends with "KeyError:
    'blocks.0.ffn.experts.w13_weight'".
Since: 0.30
Until: it looks there.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.models.dbrx", "DbrxModel.load_weights(self, weights)", when=When.COMPUTING
)
def name_experts(original: Any) -> Any:
    def load_weights(self: Any, weights: Any) -> Any:
        renamed = (
            (name.replace(".experts.", ".experts.routed_experts."), weight)
            for name, weight in weights
        )
        return original(self, renamed)

    return load_weights
