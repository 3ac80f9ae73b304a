"""Multi-head latent attention (DeepSeek-V2, 2024) over the paged cache of this backend.

A token's key is its latent and the rotated part that all heads share; its value is the latent. Each
head's own projections of the latent are applied to the query before, and to the result after (the
"absorbed" form). Prompts, chunks of prompts and decodes go this one way: so a token's result is the
same, bit for bit, however its prompt was cut and whatever came from the prefix cache, and nothing
is expanded again for what lies in the cache. A long prompt pays for it: over its own keys and
values the expanded form would multiply a third as much.

A page holds the latents twice, as part of the keys and as values, in the two orders that the
kernels read (csrc/kernels/kv_cache.h).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.lora.layers import BaseLayerWithLoRA
from vllm.model_executor.layers.attention.mla_attention import MLAAttention
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.v1.attention.backend import AttentionType, MLAAttentionImpl
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheSpec

from cpu_backend import ops
from cpu_backend.attention import kv_dtypes
from cpu_backend.attention.backend import CpuBackendAttention, StepMetadata, parts
from cpu_backend.attention.latent_adapters import LatentAdapters
from cpu_backend.errors import ConfigError

WIDEST = 1024  # of a key; see torch_ops/attention.cpp


class LatentBackend(CpuBackendAttention):
    """What the host may ask of this backend."""

    @staticmethod
    def get_name() -> str:
        """A member of the host's backend enum; its reference for CPUs, which this replaces."""
        return "CPU_MLA"

    @staticmethod
    def get_impl_cls() -> type[LatentAttentionImpl]:
        return LatentAttentionImpl

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        """The layer has said what a page holds."""
        return spec

    @classmethod
    def is_mla(cls) -> bool:
        return True


class LatentAttentionImpl(MLAAttentionImpl[StepMetadata]):
    """The forward of one layer, for which LatentAttention gives it the projections of its heads."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        *,
        kv_lora_rank: int,
        qk_nope_head_dim: int,
        v_head_dim: int,
        **_: Any,
    ) -> None:
        if (
            sliding_window
            or logits_soft_cap
            or alibi_slopes
            or kv_sharing_target_layer_name
            or attn_type != AttentionType.DECODER
        ):
            raise ConfigError(
                "cpu_backend has multi-head latent attention over all tokens alone, without "
                "windows, soft caps, slopes or shared caches: choose another model."
            )
        kv_dtypes.check(kv_cache_dtype)
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.latent = kv_lora_rank
        self.unrotated = qk_nope_head_dim
        self.v_head_dim = v_head_dim
        # What lies behind a latent in a key fills up the last columns of the value.
        self.key_dim, self.value_dim = padded(head_size), padded(kv_lora_rank)
        if self.key_dim > WIDEST:
            raise ConfigError(
                f"latent and rotated part of {head_size} channels together are not supported by "
                f"cpu_backend: up to {WIDEST} are."
            )
        self.cached_channels = self.key_dim + self.value_dim

    def set_projections(self, to_latents: torch.Tensor, from_latents: torch.Tensor) -> None:
        """to_latents [heads, latent, unrotated], from_latents [heads, v_head_dim, latent]."""
        self._to_latents = ops.PackedHeads(to_latents)
        self._from_latents = ops.PackedHeads(from_latents)

    def forward(
        self,
        query: torch.Tensor,
        latents: torch.Tensor,
        rotated: torch.Tensor,
        kv_cache: torch.Tensor,
        scale: float,
        step: StepMetadata,
        output: torch.Tensor,
        adapters: LatentAdapters | None = None,
    ) -> None:
        """query [tokens, heads, unrotated + rotated], latents [tokens, latent], rotated [tokens, 1,
        rotated]; kv_cache [blocks, block_size, cached_channels], ``scale`` that of its fp8
        codes; output [tokens, heads * v_head_dim]; adapters: of the projections of its heads."""
        tokens = step.num_actual_tokens
        rows = torch.cat((latents, rotated.flatten(1)), -1)
        if self.key_dim > self.head_size:
            rows = torch.nn.functional.pad(rows, (0, self.key_dim - self.head_size))
        self._write(rows, kv_cache, scale, step)

        make = torch.zeros if self.key_dim > self.head_size else torch.empty
        absorbed = make((tokens, self.num_heads, self.key_dim), dtype=query.dtype)
        unrotated = query[:tokens, :, : self.unrotated]
        self._to_latents(absorbed[..., : self.latent], unrotated)
        if adapters is not None:
            adapters.add_to_queries(absorbed[..., : self.latent], unrotated)
        absorbed[..., self.latent : self.head_size].copy_(query[:tokens, :, self.unrotated :])
        attended = torch.empty((tokens, self.num_heads, self.value_dim), dtype=query.dtype)
        self._attend(absorbed, kv_cache, scale, step, attended)
        heads = output[:tokens].view(tokens, self.num_heads, self.v_head_dim)
        self._from_latents(heads, attended[..., : self.latent])
        if adapters is not None:
            adapters.add_to_results(heads, attended[..., : self.latent])

    def _write(
        self, rows: torch.Tensor, kv_cache: torch.Tensor, scale: float, step: StepMetadata
    ) -> None:
        """rows [tokens, key_dim] to the slots of their tokens, as keys and as values."""
        keys, values = parts(kv_cache.unsqueeze(1), self.key_dim, self.value_dim)
        torch.ops._C.cpu_attn_reshape_and_cache.default(
            rows,
            rows[:, : self.value_dim],
            keys,
            values,
            step.slot_mapping,
            "",
            scale,
            scale,
            self.kv_cache_dtype,
        )

    def _attend(
        self,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        scale: float,
        step: StepMetadata,
        output: torch.Tensor,
    ) -> None:
        """query [tokens, heads, key_dim] over the cache to output [tokens, heads, value_dim]."""
        keys, values = parts(kv_cache.unsqueeze(1), self.key_dim, self.value_dim)
        torch.ops._C.cpu_attention_with_kv_cache.default(
            query,
            keys,
            values,
            output,
            step.query_start_loc,
            step.seq_lens,
            self.scale,
            step.causal,
            None,
            -1,
            step.block_table,
            0.0,
            step.plan,
            None,
            step.dynamic_causal,
            scale,
            scale,
            self.kv_cache_dtype,
        )

    def forward_mqa(self, *args: Any, **kwargs: Any) -> Any:
        """The host's MLAAttention asks for decodes apart; LatentAttention does not."""
        raise NotImplementedError("Prompts and decodes go one way here.")


def padded(channels: int) -> int:
    """As many as the kernels take."""
    return -(-channels // 16) * 16


class LatentAttention(MLAAttention):
    """The host's layer, with one forward for all tokens."""

    impl: LatentAttentionImpl

    @property
    def adapters(self) -> LatentAdapters | None:
        """Of the projection from latents, if the host has put any around it."""
        if not isinstance(self.kv_b_proj, BaseLayerWithLoRA):
            return None
        return LatentAdapters(self.kv_b_proj, self.num_heads, self.qk_nope_head_dim)

    def update_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the forward writes before it reads."""

    def forward_impl(
        self,
        q: torch.Tensor,
        k_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: StepMetadata | None,
        output: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Without metadata (profiling) the output is zeros."""
        if attn_metadata is None:
            return output.zero_()
        scale = self._k_scale_float
        self.impl.forward(
            q, k_c_normed, k_pe, kv_cache, scale, attn_metadata, output, self.adapters
        )
        return output

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Cut kv_b_proj into the projections of its heads, pack them, and free it."""
        weight = _weight_of(self.kv_b_proj, self.kv_lora_rank, act_dtype)
        by_head = weight.view(self.num_heads, -1, self.kv_lora_rank)
        to_keys, to_values = by_head.split([self.qk_nope_head_dim, self.v_head_dim], 1)
        self.impl.set_projections(to_keys.transpose(1, 2), to_values)
        for name, _ in list(self.kv_b_proj.named_parameters(recurse=False)):
            empty = torch.nn.Parameter(torch.empty(0), requires_grad=False)
            setattr(self.kv_b_proj, name, empty)

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        """The host's, with pages as large as they are here."""
        spec = super().get_kv_cache_spec(vllm_config)
        content = kv_dtypes.token_bytes(
            self.kv_cache_dtype, vllm_config.model_config.dtype, self.impl.cached_channels
        )
        return replace(spec, state_content_bytes=content)


def _weight_of(layer: LinearBase, in_features: int, dtype: torch.dtype) -> torch.Tensor:
    """[out_features, in_features] of a layer that is loaded: of a quantized one what its product
    makes of the identity, because every method keeps its weight in an order of its own."""
    method = layer.quant_method
    if isinstance(method, UnquantizedLinearMethod):
        return layer.weight.detach().to(dtype)
    product: torch.Tensor = method.apply(layer, torch.eye(in_features, dtype=dtype), None)
    return product.T.contiguous()
