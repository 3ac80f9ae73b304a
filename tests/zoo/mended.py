"""What ``transformers`` now does otherwise by mistake, as it did it or is meant to."""

from __future__ import annotations

import itertools
from typing import Any

import torch


class InTurns(torch.nn.Module):
    """A head's pairs of channels turn by time, row and column one after the other, as long as
    ``sections`` has such a pair left; the others by time."""

    def __init__(self, sections: tuple[int, int, int], base: float, channels: int) -> None:
        super().__init__()
        self.sections = sections
        self.frequencies = base ** -(torch.arange(0, channels, 2) / channels)

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, layer_type: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """positions: [3, batch, tokens]; cosines and sines [batch, tokens, channels]."""
        by_kind = positions.expand(3, -1, -1)[..., None] * self.frequencies
        angles = by_kind[0].clone()
        for kind in (1, 2):
            own = slice(kind, 3 * self.sections[kind], 3)
            angles[..., own] = by_kind[kind][..., own]
        whole = torch.cat([angles, angles], -1)
        return whole.cos().to(x.dtype), whole.sin().to(x.dtype)


def behind_all(
    method: Any, input_ids: torch.Tensor, mm_token_type_ids: torch.Tensor, **given: Any
) -> tuple[torch.Tensor, Any]:
    """In place of ``get_rope_index`` of a model whose videos are not cut into frames: what comes
    after a video is placed behind the largest position of its tokens (Qwen2-VL, arXiv:2409.12191,
    section 2.1), not behind its rows and columns alone.  One sequence."""
    positions, _ = method(input_ids, mm_token_type_ids=mm_token_type_ids, **given)
    start = end = 0
    for _, part in itertools.groupby(mm_token_type_ids[0].tolist()):
        own = slice(start, start := start + len(list(part)))
        positions[..., own] += end - positions[..., own].min()
        end = int(positions[..., own].max()) + 1
    return positions, torch.tensor([[end - start]])


def of_one_video(method: Any, pixels: torch.Tensor, positions: torch.Tensor, **given: Any) -> Any:
    """In place of Gemma 4's ``get_video_features``, which needs to be told how many frames a video
    has, and is not."""
    return method(pixels, positions, num_frames_per_video=torch.tensor([len(pixels)]), **given)
