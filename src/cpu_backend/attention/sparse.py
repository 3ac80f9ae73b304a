"""Latent attention over the tokens that an indexer picks (DeepSeek V3.2, GLM-5).

The indexer has keys of its own, in a cache beside that of the latents, of the model's dtype.  It
scores all tokens before each token and picks ``index_topk`` of them; the layer attends to those
alone, and some layers attend to what an earlier one's indexer has picked.  A page holds a latent
and its rotated part once, one token after the other, so that only what was picked is read
(csrc/kernels/sparse_attention.h).
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.models.deepseek_v2 import DeepseekV32IndexerCache, Indexer
from vllm.v1.kv_cache_interface import KVCacheSpec

from cpu_backend import sparse_ops
from cpu_backend.attention import kv_dtypes
from cpu_backend.attention.backend import CpuBackendMetadataBuilder, StepMetadata
from cpu_backend.attention.latent import LatentAttentionImpl, LatentBackend
from cpu_backend.errors import ConfigError

SCORED_AT_ONCE = 64  # tokens, each with a score for every token before it: 40 MB at 160k


class SparseMetadataBuilder(CpuBackendMetadataBuilder):
    """Places of tokens and no plan: what a token attends to is not known before the step."""

    def _plan(self, *_: Any) -> torch.Tensor:
        return torch.empty(0, dtype=torch.int8)


class SparseLatentBackend(LatentBackend):
    """What the host may ask of this backend, for the indexer's keys as well."""

    @staticmethod
    def get_impl_cls() -> type[LatentAttentionImpl]:
        return SparseLatentAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[CpuBackendMetadataBuilder]:
        return SparseMetadataBuilder

    @classmethod
    def is_sparse(cls) -> bool:
        return True


class SparseLatentAttentionImpl(LatentAttentionImpl):
    """The forward of one layer; its indexer, or that of a layer before, has chosen."""

    def __init__(self, *args: Any, topk_indices_buffer: torch.Tensor, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.kv_cache_dtype not in kv_dtypes.PLAIN:
            raise ConfigError(
                f"--kv-cache-dtype {self.kv_cache_dtype} is not supported with sparse attention "
                "by cpu_backend: leave it at auto."
            )
        self.chosen = topk_indices_buffer
        self.cached_channels = self.key_dim

    def record_logical_topk_ready(self) -> None:
        """Called by the host for those of its layers that compute beside the indexer."""

    def _write(
        self, rows: torch.Tensor, kv_cache: torch.Tensor, scale: float, step: StepMetadata
    ) -> None:
        sparse_ops.cache_rows(rows, kv_cache, step.slot_mapping)

    def _attend(
        self,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        scale: float,
        step: StepMetadata,
        output: torch.Tensor,
    ) -> None:
        sparse_ops.sparse_attention(query, kv_cache, output, places(step), self.chosen, self.scale)


def places(step: StepMetadata) -> sparse_ops.Places:
    return step.query_start_loc, step.seq_lens, step.block_table


class IndexerKeys(DeepseekV32IndexerCache):
    """The host's cache of an indexer's keys, with keys as they are: ``head_dim`` of ``dtype``."""

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        channels = self.head_dim * self.dtype.itemsize
        return replace(super().get_kv_cache_spec(vllm_config), state_content_bytes=channels)

    def get_attn_backend(self) -> type[SparseLatentBackend]:
        return SparseLatentBackend


class TokenIndexer(Indexer):
    """The host's layers, with a forward that rounds nothing to 8 bits."""

    k_cache: IndexerKeys

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        del self.indexer_op
        if self.head_dim % 16:
            raise ConfigError(
                f"an indexer with heads of {self.head_dim} channels is not supported by "
                "cpu_backend: multiples of 16 are."
            )
        self.k_cache.__class__ = IndexerKeys
        self.k_cache.head_dim = self.head_dim
        self.k_cache.dtype = vllm_config.model_config.dtype
        self.k_cache.num_heads = self.n_head  # which the metadata builder asks for
        block_size = vllm_config.cache_config.block_size
        rows = min(SCORED_AT_ONCE, vllm_config.scheduler_config.max_num_batched_tokens)
        self.scores = _scores(rows, -(-self.max_model_len // block_size) * block_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        qr: torch.Tensor,
        positions: torch.Tensor,
        rotary_emb: torch.nn.Module,
    ) -> torch.Tensor:
        """hidden_states [tokens, hidden], qr [tokens, q_lora_rank]; what is chosen for each token
        goes to the buffer that the layers read, which is returned.  Without metadata (profiling)
        it is left as it is."""
        query = self.wq_b(qr)[0].unflatten(1, (self.n_head, self.head_dim))
        keys, weights = self.wk_weights_proj(hidden_states)[0].split(
            [self.head_dim, self.n_head], dim=1
        )
        keys = self.k_norm(keys)
        rotated_query, rotated_keys = rotary_emb(
            positions, query[..., : self.rope_dim], keys[:, None, : self.rope_dim]
        )
        query = torch.cat((rotated_query, query[..., self.rope_dim :]), -1)
        keys = torch.cat((rotated_keys.flatten(1), keys[:, self.rope_dim :]), -1)
        metadata = get_forward_context().attn_metadata
        if isinstance(metadata, dict):
            step: StepMetadata = metadata[self.k_cache.prefix]
            tokens = step.num_actual_tokens
            sparse_ops.cache_keys(keys, self.k_cache.kv_cache, step.slot_mapping)
            sparse_ops.choose_tokens(
                query[:tokens],
                weights[:tokens],
                self.k_cache.kv_cache,
                places(step),
                self.softmax_scale * self.n_head_scale,
                self.scores,
                self.topk_indices_buffer,
            )
        return self.topk_indices_buffer


@functools.lru_cache(maxsize=1)
def _scores(rows: int, positions: int) -> torch.Tensor:
    """One for all layers; pages of it are taken as sequences grow."""
    return torch.empty(rows, positions, dtype=torch.float32)
