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
    KVCacheLayout,
)
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.attention.backends.short_conv_attn import ShortConvAttentionMetadataBuilder
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor
from vllm.v1.kv_cache_interface import MambaSpec

from cpu_backend.attention.backend import CpuBackendAttention
from cpu_backend.errors import ConfigError
from cpu_backend.speculation import MAMBA_1_STATES
from cpu_backend.state_ops import StepSequences


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

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """That of attention, because all stages of a model must have one, also one without it."""
        return CpuBackendAttention.supported_kv_cache_layouts()


@dataclass(frozen=True, eq=False)
class StateMetadata:
    """One step of a group of layers with states."""

    num_actual_tokens: int
    sequences: StepSequences
    causal: ClassVar[bool] = True

    @property
    def slots(self) -> torch.Tensor:
        """All that the step's requests have."""
        return self.sequences.slots

    def step_data(self) -> tuple[torch.Tensor, ...]:
        """What is another tensor in every step."""
        return tuple(tensor for tensor in self.sequences if tensor is not None)

    def is_repeatable(self, tokens: int) -> bool:
        """Whether a step of so many tokens may be recorded."""
        return self.num_actual_tokens == tokens


class StateMetadataBuilder(ShortConvAttentionMetadataBuilder):
    """Looks up each request's slots once for all layers of a group.

    One of the host's only in name: to them it says which tokens the sampler has accepted.
    """

    supports_update_block_table = False

    def __init__(
        self,
        kv_cache_spec: MambaSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        AttentionMetadataBuilder.__init__(self, kv_cache_spec, layer_names, vllm_config, device)
        self._drafts = vllm_config.speculative_config is not None
        if self._drafts and kv_cache_spec.mamba_type is MambaAttentionBackendEnum.MAMBA1:
            raise ConfigError(MAMBA_1_STATES)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
        *,
        num_accepted_tokens: torch.Tensor | None = None,
        num_decode_draft_tokens_cpu: torch.Tensor | None = None,
    ) -> StateMetadata:
        """See the host's builder.

        num_accepted_tokens [requests]: of the step before; num_decode_draft_tokens_cpu [requests]:
        how many drafts are verified, negative where a prompt is read.
        """
        common = common_attn_metadata
        spec = cast("MambaSpec", self.kv_cache_spec)
        table = mamba_get_block_table_tensor(
            common.block_table_tensor, common.seq_lens, spec, spec.mamba_cache_mode
        )
        accepted = None
        if self._drafts:
            assert num_accepted_tokens is not None
            assert num_decode_draft_tokens_cpu is not None
            accepted = num_accepted_tokens * (num_decode_draft_tokens_cpu >= 0)
        return StateMetadata(
            common.num_actual_tokens,
            StepSequences(
                common.query_start_loc,
                table.contiguous() if self._drafts else table[:, 0].contiguous(),
                common.seq_lens > common.query_start_loc.diff(),
                accepted,
            ),
        )


def metadata_of(layer: Any) -> StateMetadata | None:
    """This step's for a layer of the host's; None while the host profiles."""
    steps = get_forward_context().attn_metadata
    return None if steps is None else steps[layer.prefix]


def step_of(layer: Any) -> tuple[StateMetadata, torch.Tensor, Any] | None:
    """This step's metadata for a layer of the host's, its convolution's states [slots, channels,
    taps] and its recurrent ones, if any; None while the host profiles."""
    if (metadata := metadata_of(layer)) is None:
        return None
    conv_states, *states = layer.kv_cache
    if not is_conv_state_dim_first():
        conv_states = conv_states.transpose(1, 2)
    return metadata, conv_states, states[0] if states else None
