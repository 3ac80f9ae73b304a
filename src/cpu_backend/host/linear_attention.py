"""Lightning attention (Ling 2.5, Ring 2.5) runs on this backend's ops, and keeps states in fp32.

What: ``BailingMoELinearAttention.forward`` and its backend; the dtype of its states, of the layer
    and of the model.
Why: the host's forward is of Triton kernels, and its op hides from a recorded step what it calls.
    Its states have the model's dtype, in which one that hardly decays no longer takes in what a
    token adds.
Since: 0.32
Until: of the dtype: the host asks for ``--mamba-ssm-cache-dtype`` here, too.  Of the rest: never,
    metadata and ops are this backend's own.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend.host.seam import When, patch, rely_on

LAYER = "vllm.model_executor.layers.mamba.linear.bailing_linear_attn"
MODEL = "vllm.model_executor.models.bailing_moe_linear"
STATES = "vllm.model_executor.layers.mamba.mamba_utils"

rely_on(
    STATES,
    "MambaStateDtypeCalculator.linear_attention_state_dtype(cls, model_dtype, mamba_cache_dtype)",
)


@patch(
    LAYER,
    "BailingMoELinearAttention.forward(self, hidden_states, output, positions)",
    when=When.COMPUTING,
)
def attend(original: Any) -> Any:
    """Projections, norms and rotation are the host's modules.

    state = exp(-slope) * state + scaling * value key, out = state query: a Mamba-2 scan whose time
    step is the scaling, with a group for each head.
    """
    from cpu_backend import ops
    from cpu_backend.attention.states import metadata_of
    from cpu_backend.state_ops import state_scan

    def forward(
        self: Any, hidden_states: torch.Tensor, output: torch.Tensor, positions: torch.Tensor
    ) -> None:
        decay, scaling = constants(self)  # first while the host profiles: no step may make them
        if (step := metadata_of(self)) is None:
            output.zero_()
            return
        tokens = step.num_actual_tokens
        hidden_states = hidden_states[:tokens]
        per_head = (self.tp_heads, self.head_dim)
        mixed, _ = self.query_key_value(hidden_states)
        if self.linear_silu:
            mixed = torch.nn.functional.silu(mixed)
        query, key, value = (part.unflatten(1, per_head) for part in mixed.chunk(3, dim=1))
        if self.use_qk_norm:
            query, key = self.query_layernorm(query), self.key_layernorm(key)
        if self.linear_rope:
            query, key = query.flatten(1), key.flatten(1)
            query, key = self.rotary_emb(positions[:tokens], query, key)
            query, key = query.unflatten(1, per_head), key.unflatten(1, per_head)
        attended = torch.empty(value.shape, dtype=value.dtype)
        state_scan(
            attended,
            self.kv_cache[0],
            value,
            scaling.expand(tokens, self.tp_heads),
            decay,
            key,
            query,
            None,
            None,
            None,
            step.sequences,
            softplus=False,
        )
        gate, _ = self.g_proj(hidden_states)
        groups = (-1, self.g_norm.group_size)
        normalized = ops.gated_rms_norm(
            attended.flatten(1).unflatten(1, groups),
            gate.unflatten(1, groups),
            self.g_norm.weight.data,
            self.g_norm.eps,
            gate_first=False,
            act="sigmoid",
        )
        output[:tokens] = self.dense(normalized.flatten(1))[0]

    return forward


def constants(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What a head's state decays by in one unit of time, [heads], and the time of a token, [1];
    made once."""
    if not hasattr(layer, "lightning_constants"):
        slopes = layer.tp_slope.flatten().double()
        layer.lightning_constants = (
            (-slopes / layer.scaling).float(),
            torch.tensor([layer.scaling], dtype=torch.float32),
        )
    made: tuple[torch.Tensor, torch.Tensor] = layer.lightning_constants
    return made


@patch(LAYER, "BailingMoELinearAttention.get_attn_backend(self)", when=When.COMPUTING)
def choose_backend(original: Any) -> Any:
    """The one of other layers with states, which the host's registry has no say in here."""
    from cpu_backend.attention.states import CpuBackendStates

    return lambda self: CpuBackendStates


def state_dtype(model_config: Any, cache_config: Any) -> tuple[torch.dtype, ...]:
    """As of the recurrent states of other layers."""
    from vllm.model_executor.layers.mamba.mamba_utils import MambaStateDtypeCalculator

    dtypes: tuple[torch.dtype, ...] = MambaStateDtypeCalculator.linear_attention_state_dtype(
        model_config.dtype, cache_config.mamba_ssm_cache_dtype
    )
    return dtypes


@patch(
    "vllm.model_executor.layers.mamba.linear.base",
    "LinearAttention.get_state_dtype(self)",
    when=When.COMPUTING,
)
def dtype_of_layer(original: Any) -> Any:
    """With which its cache is viewed."""
    return lambda self: state_dtype(self.model_config, self.cache_config)


@patch(
    MODEL,
    "BailingMoeV25ForCausalLM.get_mamba_state_dtype_from_config(cls, vllm_config)",
    when=When.COMPUTING,
)
def dtype_of_model(original: Any) -> Any:
    """With which the size of pages is reckoned."""
    return lambda cls, vllm_config: state_dtype(vllm_config.model_config, vllm_config.cache_config)
