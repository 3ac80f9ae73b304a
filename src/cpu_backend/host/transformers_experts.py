"""Experts behind transformers leave no tensor of the step behind.

What: ``_forward_super`` forgets what the router has chosen.
Why: the host keeps it until the next step.  Such a tensor is of the step's own memory, so the step
    would not be recorded.
Since: 0.32
Until: the host forgets it.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch


@patch(
    "vllm.model_executor.models.transformers.moe",
    "TransformersMoERunner._forward_super(self, ...)",
)
def forget(original: Any) -> Any:
    """Also after an error."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            self._moe_state.topk_ids = None

    return forward
