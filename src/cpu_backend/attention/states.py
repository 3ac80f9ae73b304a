"""The attention backend of layers that keep a recurrent state instead of keys and values.

A request's state lies in a page of the KV cache like those of attention, and a step's requests, be
they decodes or parts of prompts, are sequences of tokens to one op, which begins with the state
that the step before has left and leaves its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor
from vllm.v1.kv_cache_interface import MambaSpec

from cpu_backend.errors import ConfigError


class CpuBackendStates(AttentionBackend):
    """What the host may ask of this backend."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16, torch.float16]

    @staticmethod
    def get_name() -> str:
        return "CPU_STATES"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        raise NotImplementedError("Layers with a state compute by themselves.")

    @staticmethod
    def get_builder_cls() -> type[StateMetadataBuilder]:
        return StateMetadataBuilder

    @classmethod
    def is_ssm(cls) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class StateMetadata:
    """One step of a group of layers with states.

    query_start_loc [requests + 1] int32: the first token of each request; slots [requests] int32:
    where it has its state; resumes [requests] bool: whether that is one, or still to be begun.
    """

    num_actual_tokens: int
    query_start_loc: torch.Tensor
    slots: torch.Tensor
    resumes: torch.Tensor
    causal: ClassVar[bool] = True

    def step_data(self) -> tuple[torch.Tensor, ...]:
        """What is another tensor in every step."""
        return self.query_start_loc, self.slots, self.resumes

    def is_repeatable(self, tokens: int) -> bool:
        """Whether a step of so many tokens may be recorded."""
        return self.num_actual_tokens == tokens


class StateMetadataBuilder(AttentionMetadataBuilder[StateMetadata]):
    """Looks up each request's slot once for all layers of a group."""

    def __init__(
        self,
        kv_cache_spec: MambaSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        if vllm_config.speculative_config is not None:
            raise ConfigError(
                "speculative decoding is not supported for models with recurrent states, which "
                "would have to be taken back with a refused token: leave --speculative-config out."
            )

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> StateMetadata:
        """See the host's builder."""
        common = common_attn_metadata
        spec = cast("MambaSpec", self.kv_cache_spec)
        table = mamba_get_block_table_tensor(
            common.block_table_tensor, common.seq_lens, spec, spec.mamba_cache_mode
        )
        return StateMetadata(
            common.num_actual_tokens,
            common.query_start_loc,
            table[:, 0].contiguous(),
            common.seq_lens > common.query_start_loc.diff(),
        )


def step_of(layer: Any) -> tuple[StateMetadata, torch.Tensor, Any] | None:
    """This step's metadata for a layer of the host's, its convolution's states [slots, channels,
    taps] and its recurrent ones, if any; None while the host profiles."""
    steps = get_forward_context().attn_metadata
    if steps is None:
        return None
    conv_states, *states = layer.kv_cache
    if not is_conv_state_dim_first():
        conv_states = conv_states.transpose(1, 2)
    return steps[layer.prefix], conv_states, states[0] if states else None
