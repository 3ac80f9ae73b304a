"""Mixtures say by their full names which weights of experts they have loaded.

What: ``MoERunner.load_weights`` puts ``routed_experts.`` before each name.
Why: the host's loader takes the names to be the runner's, so whole_weights.py would miss them all.
Since: 0.31
Until: 0.32 mends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cpu_backend.host.seam import Hosts, When, patch


@patch(
    "vllm.model_executor.layers.fused_moe.runner.moe_runner",
    "MoERunner.load_weights(self, weights)",
    when=When.COMPUTING,
    hosts=Hosts(until=(0, 32)),
)
def say_in_full(original: Any) -> Any:
    """They are said relative to the experts inside the runner."""

    def load_weights(self: Any, weights: Any) -> Iterator[str]:
        for name in original(self, weights):
            yield f"routed_experts.{name}"

    return load_weights
