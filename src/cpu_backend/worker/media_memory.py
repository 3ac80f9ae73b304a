"""What pictures, videos and sounds may take of a rank's memory, beside weights and KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from cpu_backend.runtime.memory import GIB

# What a picture's tokens are made of, as most towers merge them: 2 by 2 patches.
PATCHES = 4
# Rows as wide as the widest layer's that a tower holds at once.  Qwen2.5-VL's, of 3,420 channels
# twice, came to 2.4 GiB with 62,532 patches, which this makes 2.4.
ROWS = 3


@dataclass(frozen=True)
class MediaBytes:
    """processed: kept as the tower takes them, so that they need not be processed again; encoded:
    kept as the text model takes them; tower: while the largest is encoded."""

    processed: int = 0
    encoded: int = 0
    tower: int = 0

    @property
    def total(self) -> int:
        return self.processed + self.encoded + self.tower

    def __str__(self) -> str:
        return (
            f"media may take {self.total / GIB:.2f} GiB: {self.processed / GIB:.2f} processed "
            f"(--mm-processor-cache-gb), {self.encoded / GIB:.2f} encoded, about "
            f"{self.tower / GIB:.2f} while the largest is encoded (--mm-processor-kwargs may limit "
            "its size)"
        )


def media_bytes(config: Any, budget: Any, model: torch.nn.Module, local_ranks: int) -> MediaBytes:
    """config: the host's VllmConfig; budget: its MultiModalBudget, None for models of text.

    Encoded media are kept by the host, and those of one request before it gets them.
    Processed media are kept once for each process that receives requests, or in the engine's.
    """
    model_config = config.model_config
    if budget is None or model_config.multimodal_config is None:
        return MediaBytes()
    cached = model_config.multimodal_config.mm_processor_cache_gb * GIB
    processes = config.parallel_config._api_process_count
    size = model_config.dtype.itemsize
    tokens = min(max(budget.mm_max_toks_per_item.values(), default=0), model_config.max_model_len)
    return MediaBytes(
        int(cached * processes) // local_ranks,
        2 * budget.encoder_cache_size * model_config.get_inputs_embeds_size() * size,
        PATCHES * tokens * ROWS * max(_widths(model), default=0) * size,
    )


def _widths(model: torch.nn.Module) -> Iterator[int]:
    """Of the outputs of all linear layers in its towers."""
    find = getattr(model, "get_mm_mapping", None)
    towers = tuple(find().tower_model) if find else ()
    for name, module in model.named_modules():
        if name.startswith(towers):
            yield getattr(module, "output_size_per_partition", getattr(module, "out_features", 0))
