"""Towers of images and sounds attend on this backend's kernel.

What: ``MMEncoderAttention.forward_cpu``; for towers of ``transformers``, what it calls sdpa.
Why: torch's attention takes longer in 16 bits, most where it has a mask (benchmarks/towers.py).
Since: 0.32
Until: never.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend.host.seam import When, patch

MORE = ("position_bias", "cache")  # of transformers' sdpa, which is left to it


@patch(
    "vllm.model_executor.layers.attention.mm_encoder_attention",
    "MMEncoderAttention.forward_cpu(self, query, key, value, cu_seqlens, ...)",
    when=When.COMPUTING,
)
def attend(original: Any) -> Any:
    """query [batch, length, heads * size] or [batch, length, heads, size]; key, value alike.

    cu_seqlens [sequences + 1]: where the sequences begin within a batch of one; without it each of
    the batch is one.
    """
    from cpu_backend.attention import encoder

    def forward_cpu(
        self: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seqlens: torch.Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        batch, length = query.shape[:2]
        if not encoder.takes(query, key, value) or (cu_seqlens is not None and batch > 1):
            result: torch.Tensor = original(self, query, key, value, cu_seqlens, *args, **kwargs)
            return result
        if cu_seqlens is None:
            each = torch.arange(batch + 1)
            query_starts, key_starts = each * length, each * key.shape[1]
        else:
            query_starts = key_starts = cu_seqlens.long()
        out = encoder.attend(
            query.reshape(-1, self.num_heads, self.head_size),
            key.reshape(-1, self.num_kv_heads, self.head_size),
            value.reshape(-1, self.num_kv_heads, self.head_size),
            query_starts,
            key_starts,
            self.scale,
        )
        return out.reshape(query.shape)

    return forward_cpu


def take_sdpa() -> None:
    """In this process, for all models of ``transformers``: where every query sees the same keys."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    from cpu_backend.attention import encoder

    def sdpa(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """query [batch, heads, queries, size]; key, value [batch, kv_heads, keys, size];
        attention_mask [batch, 1, queries, keys].  Returns [batch, queries, heads, size]."""
        batch, heads, queries, size = query.shape
        seen = encoder.seen_by_all(attention_mask, batch, key.shape[2])
        if is_causal is None:
            is_causal = getattr(module, "is_causal", True)
        is_causal = is_causal and queries > 1 and attention_mask is None
        more = dropout or any(kwargs.get(name) is not None for name in MORE)
        if seen is None or is_causal or more or not encoder.takes(query, key, value):
            out, _ = sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout, scaling, is_causal, **kwargs
            )
            return out, None
        starts = torch.cat((torch.zeros(1, dtype=torch.int64), seen.sum(1).cumsum(0)))
        out = encoder.attend(
            query.transpose(1, 2).reshape(batch * queries, heads, size),
            key.transpose(1, 2)[seen],
            value.transpose(1, 2)[seen],
            torch.arange(batch + 1) * queries,
            starts,
            size**-0.5 if scaling is None else scaling,
        )
        return out.view(batch, queries, heads, size), None

    AttentionInterface.register("sdpa", sdpa)
