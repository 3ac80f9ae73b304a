"""Routers that stay with transformers find the same experts for a token in every batch.

What: the product in the forward of such a router is this backend's.
Why: PyTorch's product of a row depends on how many rows there are and on where they lie, so answers
    would depend on other requests, and no step would be replayed.
Since: 0.33 (Kolibri's, which chooses before the sigmoid)
Until: the host has its own layer in the place of such a router's weight.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cpu_backend import ops
from cpu_backend.host.seam import Hosts, When, patch


@patch(
    "vllm.model_executor.models.transformers.moe",
    "_hf_topk_router(hidden_states, gating_output, topk, renormalize, gate)",
    when=When.COMPUTING,
    hosts=Hosts(since=(0, 33)),
)
def row_by_row(original: Any) -> Any:
    """As long as the router computes."""

    def route(
        hidden_states: Any, gating_output: Any, topk: int, renormalize: bool, gate: Any
    ) -> Any:
        with _Products(gate):
            return original(hidden_states, gating_output, topk, renormalize, gate)

    return route


class _Products(TorchFunctionMode):
    """Those with the router's weight; it is packed when it is first met."""

    def __init__(self, router: torch.nn.Module) -> None:
        super().__init__()
        self.router = router

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.nn.functional.linear:
            function = self._linear
        return function(*args, **(kwargs or {}))

    def _linear(self, input: Any, weight: Any, bias: Any = None) -> Any:  # as torch names them
        if weight.shape != self.router.weight.shape:
            return torch.nn.functional.linear(input, weight, bias)
        packed = getattr(self.router, "cpu_linear", None)
        if packed is None:
            packed = self.router.cpu_linear = ops.PackedLinear(weight.detach())
        return packed(input, None, bias)
