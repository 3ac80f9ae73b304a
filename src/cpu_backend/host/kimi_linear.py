"""Kimi Linear is made of the host's shared layers; its delta attention runs on this backend's ops.

What: the registry's ``KimiLinearForCausalLM`` is the one of vllm/models/kimi_k3/amd; its experts
    keep their width; its convolutions are in the model's dtype;
    ``KimiGatedDeltaNetAttention.forward``, with layers/gated_delta.py as its core.
Why: the host's choice is for NVIDIA: kernels for its GPUs where other classes have layers that a
    platform may replace.  Convolutions of bf16 models are fp32 there, and the rest is Triton.
Since: 0.32
Until: of the class: the host takes this one for CPUs, as 0.33 does for XPUs.  Of the rest: never,
    metadata and ops are this backend's own.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend.host.gated_delta import core
from cpu_backend.host.seam import Hosts, When, change, patch, rely_on

MODEL = "KimiLinearForCausalLM"
MODULE = "vllm.models.kimi_k3.amd.linear"
LAYER = "vllm.model_executor.layers.mamba.gdn.kimi_gdn_linear_attn"

rely_on(MODULE, MODEL)


@change("vllm.model_executor.models.registry", "ModelRegistry", "_LazyRegisteredModel")
def choose_class(registry: Any) -> None:
    """As the host registers its own."""
    registry.ModelRegistry.models[MODEL] = registry._LazyRegisteredModel(MODULE, MODEL)


@patch(MODULE, "KimiMoE.__init__(self, config, ...)", when=When.COMPUTING)
def leave_width(original: Any) -> Any:
    """Where ranks share experts, the host widens narrow ones for kernels of GPUs, and fails."""

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        config.min_moe_intermediate_per_partition = 1
        original(self, config, *args, **kwargs)

    return __init__


@patch(
    LAYER,
    "KimiGatedDeltaNetAttention.__init__(self, config, vllm_config, prefix)",
    when=When.COMPUTING,
)
def keep_dtype(original: Any) -> Any:
    """Before weights are loaded, which are of that dtype in the checkpoint."""

    def __init__(self: Any, config: Any, vllm_config: Any, prefix: str = "") -> None:  # noqa: N807
        original(self, config, vllm_config, prefix)
        weight = self.conv1d.weight
        weight.data = weight.data.to(vllm_config.model_config.dtype)

    return __init__


@patch(
    LAYER,
    "KimiGatedDeltaNetAttention.forward(self, hidden_states, positions)",
    when=When.COMPUTING,
    hosts=Hosts(since=(0, 31)),
)
def forward(original: Any) -> Any:
    """Projections and norm are the host's modules."""
    from cpu_backend.layers.gated_delta import Heads

    def forward(self: Any, hidden_states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        per_head = (-1, self.head_dim)
        heads = Heads(self.local_num_heads, self.local_num_heads, self.head_dim, self.head_dim)
        projected, _ = self.in_proj_qkvgfab(hidden_states)
        mixed, b, a = projected.split(
            [3 * self.local_projection_size, self.local_num_heads, self.head_dim], dim=1
        )
        a, _ = self.f_b_proj(a)
        gate, _ = self.g_b_proj(self.g_a_proj(hidden_states)[0])
        attended = core(self, mixed, a.unflatten(1, per_head), b, heads)
        result: torch.Tensor
        result, _ = self.o_proj(self.o_norm(attended, gate.unflatten(1, per_head)).flatten(1))
        return result

    return forward


@patch(
    LAYER,
    "KimiGatedDeltaNetAttention.forward(self, hidden_states, positions, output)",
    when=When.COMPUTING,
    hosts=Hosts(until=(0, 31)),
)
def forward_into(original: Any) -> Any:
    """The result is written into ``output``."""
    compute = forward(original)

    def forward_into(
        self: Any, hidden_states: torch.Tensor, positions: torch.Tensor, output: torch.Tensor
    ) -> None:
        output[: hidden_states.size(0)] = compute(self, hidden_states, positions)

    return forward_into
