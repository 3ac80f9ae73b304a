"""How ``transformers`` turned heads by positions, where it now does so otherwise by mistake."""

from __future__ import annotations

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
