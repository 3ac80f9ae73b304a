"""The router's correction bias is loaded where the checkpoint has it among the experts (Laguna).

What: ``RoutedExperts.load_weights`` takes it.
Why: the host passes over every name that is no expert's, and the bias would stay zero.
Since: 0.32
Until: its loader reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cpu_backend.host.seam import When, patch

NAME = "e_score_correction_bias"


@patch(
    "vllm.model_executor.layers.fused_moe.routed_experts",
    "RoutedExperts.load_weights(self, weights)",
    when=When.COMPUTING,
)
def load(original: Any) -> Any:
    """And all others as before."""
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    def load_weights(self: Any, weights: Iterable[tuple[str, Any]]) -> Iterator[str]:
        loaded = []

        def of_experts() -> Iterator[tuple[str, Any]]:
            for name, weight in weights:
                if name == NAME and self.e_score_correction_bias is not None:
                    default_weight_loader(self.e_score_correction_bias, weight)
                    loaded.append(name)
                else:
                    yield name, weight

        yield from original(self, of_experts())
        yield from loaded

    return load_weights
