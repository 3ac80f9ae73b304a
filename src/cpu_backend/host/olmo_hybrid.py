"""OLMo Hybrid loads, and its gated delta nets run on this backend's ops.

What: ``OlmoHybridGatedDeltaNetAttention.forward``, with layers/gated_delta.py as its core; what
    loads its convolutions; norms have the names of transformers' checkpoints as well;
    ``set_triton_allocator`` does nothing.
Why: the forward is of Triton kernels, for which the layer also reserves memory, and Triton does not
    compile for CPUs here.  The host's loader of convolutions waits for an argument that none gives.
Since: 0.32
Until: loaders: the host loads the model.  The forward: never, metadata and ops are this backend's
    own.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend.host.gated_delta import core, heads_of, split
from cpu_backend.host.seam import When, change, patch

MODEL = "vllm.model_executor.models.olmo_hybrid"
LAYER = "vllm.model_executor.layers.mamba.gdn.olmo_gdn_linear_attn"
# Of the norms: as transformers writes them, and as the host calls them.
NAMES = {
    "attention_layer_norm": "input_layernorm",
    "feedforward_layer_norm": "post_attention_layernorm",
}


@patch("vllm.triton_utils.allocation", "set_triton_allocator(device)")
def reserve_nothing(original: Any) -> Any:
    """The stand-in that the host has for Triton cannot do it."""
    return lambda device: None


@change(MODEL, "OlmoHybridModel", "WeightsMapper", when=When.COMPUTING)
def know_names(model: Any) -> None:
    """Before weights are loaded."""
    model.OlmoHybridModel.hf_to_vllm_mapper |= model.WeightsMapper(orig_to_new_substr=NAMES)


@patch(LAYER, "_make_fused_conv1d_weight_loader(dims, tp_size, tp_rank)", when=When.COMPUTING)
def load_convolution(original: Any) -> Any:
    """Which part of the convolution a weight is, it says itself."""

    def make(dims: list[int], tp_size: int, tp_rank: int) -> Any:
        load = original(dims, tp_size, tp_rank)
        return lambda parameter, weight: load(parameter, weight, weight.shard_id)

    return make


@patch(
    LAYER,
    "OlmoHybridGatedDeltaNetAttention.forward(self, hidden_states, output)",
    when=When.COMPUTING,
)
def forward(original: Any) -> Any:
    """Projections and norm are the host's modules; beta may be as large as 2."""

    def forward(self: Any, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
        mixed, gate = split(self, self.in_proj_qkvg(hidden_states)[0])
        a, b = self.a_proj(hidden_states)[0], self.b_proj(hidden_states)[0]
        beta_range = 2.0 if self.allow_neg_eigval else 1.0
        attended = core(self, mixed, a, b, heads_of(self), beta_range=beta_range)
        output.copy_(self.o_proj(self.o_norm(attended, gate).flatten(1))[0])

    return forward
