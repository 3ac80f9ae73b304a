"""The attention backend of the host's registry: decoder, encoder and cross attention.

One forward does what the host's layers ask for in two calls: it writes this step's keys and values
into the paged cache, then attends over it (``csrc/kernels/attention.h``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionLayer,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.attention.backends.utils import get_num_attention_heads_from_layers
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    KVCacheLayout,
    KVQuantMode,
)

from cpu_backend.attention import encoder, kv_dtypes, whole_prompts
from cpu_backend.attention.spans import Pieces, cut
from cpu_backend.errors import ConfigError

# The kernels take any multiple of 16; these are the sizes that the tests run.
HEAD_SIZES = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
_ENCODER_TYPES = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)


class CpuBackendAttention(AttentionBackend):
    """What the host may ask of this backend."""

    forward_includes_kv_cache_update: bool = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16, torch.float16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = [*kv_dtypes.PLAIN, *kv_dtypes.QUANTIZED]

    @staticmethod
    def get_name() -> str:
        """A member of the host's backend enum; the in-tree CPU backend's, which this replaces."""
        return "CPU_ATTN"

    @staticmethod
    def get_impl_cls() -> type[CpuBackendAttentionImpl]:
        return CpuBackendAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[CpuBackendMetadataBuilder]:
        return CpuBackendMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return list(HEAD_SIZES)

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """Pages ordered by head: [blocks, kv_heads, block_size, 2 * head_size]."""
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        """Room for the scales of int8, which lie at the end of each head's page."""
        if spec.kv_quant_mode != KVQuantMode.INT8_PER_TOKEN_HEAD:
            return spec
        channels = spec.head_size + spec.head_size_v
        content = kv_dtypes.token_bytes("int8_per_token_head", spec.dtype, channels)
        return replace(spec, state_content_bytes=content)

    @classmethod
    def set_head_size_v(cls, head_size_v: int) -> None:
        """Of values: each layer's output says it, too."""
        if head_size_v % 16:
            raise ConfigError(
                f"values of {head_size_v} channels are not supported by cpu_backend: multiples of "
                "16 are."
            )

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_mm_prefix(cls) -> bool:
        """Images whose tokens see each other in both directions (Gemma 3)."""
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (
            AttentionType.DECODER,
            AttentionType.ENCODER,
            AttentionType.ENCODER_ONLY,
            AttentionType.ENCODER_DECODER,
        )


@dataclass(eq=False)
class StepMetadata:
    """One step's attention over one group of layers; tensors are the host's, not copies.

    query_start_loc [requests + 1], seq_lens [requests] and block_table [requests, pages] int32,
    slot_mapping [tokens] int64; plan: the opaque work list of ``_C::get_scheduler_metadata``.
    mm_prefix_range: what attention reads instead where a step has tokens of images that see each
    other; under the name by which the host's Gemma 4 takes it from its full-attention layers.
    Not frozen: the host's builders of cross and of chunked attention, which wrap this project's,
    replace the slots, and leave a function of theirs here.
    """

    num_actual_tokens: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    plan: torch.Tensor
    causal: bool
    dynamic_causal: torch.Tensor | None
    encoder_cache: torch.Tensor | None
    mm_prefix_range: Pieces | None = None

    def step_data(self) -> tuple[torch.Tensor, ...]:
        """What is another tensor in every step."""
        return (
            self.query_start_loc,
            self.seq_lens,
            self.block_table,
            self.slot_mapping,
            self.plan,
        )

    def is_repeatable(self, tokens: int) -> bool:
        """Whether a step of so many tokens may be recorded."""
        return (
            self.dynamic_causal is None
            and self.encoder_cache is None
            and self.mm_prefix_range is None
            and self.num_actual_tokens >= tokens
            and self.num_actual_tokens % tokens == 0  # an encoder may have several states of each
        )


class CpuBackendMetadataBuilder(AttentionMetadataBuilder[StepMetadata]):
    """Plans the work of a step once for all layers of a group."""

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        whole_prompts.check(vllm_config.model_config, kv_cache_spec)
        self.spec = kv_cache_spec
        self.dtype = vllm_config.model_config.dtype
        self.num_heads = get_num_attention_heads_from_layers(
            vllm_config, layer_names
        ) or vllm_config.model_config.get_num_attention_heads(vllm_config.parallel_config)
        self.window = _shared_window(vllm_config, layer_names)
        self.is_cross = isinstance(kv_cache_spec, CrossAttentionSpec)
        self.is_encoder = isinstance(kv_cache_spec, EncoderOnlyAttentionSpec)
        # Of the step's requests, and what else it has room for; None: prompts are read forwards.
        self.prompt_lengths: Callable[[], Sequence[int]] | None = None

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> StepMetadata:
        """See the host's builder; nothing is copied."""
        common = common_attn_metadata
        dynamic = common.causal if isinstance(common.causal, torch.Tensor) else None
        forwards = dynamic is None and not self.is_cross and not self.is_encoder
        causal = bool(common.causal) if forwards else False
        ranges = common.mm_req_doc_ranges
        if self.prompt_lengths is not None:
            causal, ranges = True, whole_prompts.spans(self.prompt_lengths())
        block_table, slot_mapping = common.block_table_tensor, common.slot_mapping
        encoder_cache = None
        if self.is_encoder:
            block_table, slot_mapping, encoder_cache = self._encoder_pages(common)
        plan = self._plan(common.query_start_loc, common.seq_lens, causal, dynamic)
        pieces = None
        if ranges and causal:
            pieces = cut(common.query_start_loc, common.seq_lens, block_table, ranges)
        if pieces is not None:
            marks = pieces.dynamic_causal
            pieces = replace(
                pieces, plan=self._plan(pieces.query_start_loc, pieces.seq_lens, causal, marks)
            )
        return StepMetadata(
            common.num_actual_tokens,
            common.query_start_loc,
            common.seq_lens,
            block_table,
            slot_mapping,
            plan,
            causal,
            dynamic,
            encoder_cache,
            pieces,
        )

    def _plan(
        self,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        causal: bool,
        dynamic_causal: torch.Tensor | None,
    ) -> torch.Tensor:
        """The work of these requests, for all layers of the group."""
        plan: torch.Tensor = torch.ops._C.get_scheduler_metadata.default(
            len(query_start_loc) - 1,
            self.num_heads,
            self.spec.num_kv_heads,
            self.spec.head_size,
            seq_lens,
            self.dtype,
            query_start_loc,
            causal,
            self.window,
            "",
            True,
            dynamic_causal,
        )
        return plan

    def _encoder_pages(
        self, common: CommonAttentionMetadata
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Pages for one step: encoder-only models keep no cache, the kernel wants one."""
        starts = common.query_start_loc[:-1]
        block_table, slots, (pages, block_size) = encoder.places(
            starts, common.seq_lens, self.spec.block_size
        )
        shape = (pages, self.spec.num_kv_heads, block_size, 2 * self.spec.head_size)
        return block_table, slots, torch.zeros(shape, dtype=self.dtype)


def parts(
    kv_cache: torch.Tensor, key_dim: int, value_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys and the values of every page, [blocks, kv_heads, block_size, key_dim] and
    [blocks, kv_heads, block_size, value_dim]."""
    blocks, heads, block_size, content = kv_cache.shape
    pages = kv_cache.view(blocks, heads, block_size * content)
    end = block_size * key_dim
    keys, values = pages[:, :, :end], pages[:, :, end : end + block_size * value_dim]
    return keys.unflatten(2, (block_size, key_dim)), values.unflatten(2, (block_size, value_dim))


def _shared_window(config: VllmConfig, layer_names: list[str]) -> int:
    """The sliding window that all layers of the group share, else -1: then no page is skipped in
    the plan, and each layer masks by its own window."""
    layers = get_layers_from_vllm_config(config, Attention, layer_names)
    windows = {getattr(layer.impl, "sliding_window", -1) for layer in layers.values()}
    return windows.pop() if len(windows) == 1 else -1


class CpuBackendAttentionImpl(AttentionImpl):
    """The forward of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        chunk_lookback: int = -1,  # the host refuses others than this
    ) -> None:
        if head_size % 16 or not 16 <= head_size <= 512:
            raise ConfigError(
                f"head size {head_size} is not supported by cpu_backend: "
                "multiples of 16 up to 512 are."
            )
        kv_dtypes.check(kv_cache_dtype)
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes)
        self.sliding_window = sliding_window or -1
        self.softcap = logits_soft_cap or 0.0
        self.attn_type = attn_type
        # Encoders keep no cache: what they attend to is written and read within the step.
        self.kv_cache_dtype = "auto" if attn_type in _ENCODER_TYPES else kv_cache_dtype
        self.shares_kv = kv_sharing_target_layer_name is not None
        self.sinks = sinks
        self._write = torch.ops._C.cpu_attn_reshape_and_cache.default
        self._attend = torch.ops._C.cpu_attention_with_kv_cache.default

    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: StepMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """query, output [tokens, heads, head_size]; key, value [tokens, kv_heads, head_size];
        kv_cache [blocks, kv_heads, block_size, 2 * head_size], with int8 codes 8 bytes more.
        Without metadata (profiling) the output is returned as it is."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("cpu_backend does not quantize attention outputs.")
        step = attn_metadata
        if step is None:
            return output
        if step.encoder_cache is not None:
            kv_cache = step.encoder_cache
        keys, values = parts(kv_cache, self.head_size, output.shape[-1])
        cache = (layer._k_scale_float, layer._v_scale_float, self.kv_cache_dtype)
        if key is not None and value is not None and not self.shares_kv:
            self._write(key, value, keys, values, step.slot_mapping, "", *cache)
        tokens = step.num_actual_tokens
        read = step.mm_prefix_range or step
        self._attend(
            query[:tokens],
            keys,
            values,
            output[:tokens],
            read.query_start_loc,
            read.seq_lens,
            self.scale,
            step.causal,
            self.alibi_slopes,
            self.sliding_window,
            read.block_table,
            self.softcap,
            read.plan,
            self.sinks,
            read.dynamic_causal,
            *cache,
        )
        return output
