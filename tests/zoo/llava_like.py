"""R-4B and Bee: LLaVA-OneVision of ``transformers`` with other projectors."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlavaOnevisionForConditionalGeneration


class RForConditionalGeneration(LlavaOnevisionForConditionalGeneration):
    wider = 1  # than the text model, between both layers of the projector

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.multi_modal_projector = Projector(config, self.wider)


class BeeForConditionalGeneration(RForConditionalGeneration):
    wider = 4


class Projector(torch.nn.Module):
    """Norms what it projects."""

    def __init__(self, config: Any, wider: int) -> None:
        super().__init__()
        size, hidden = config.vision_config.hidden_size, config.text_config.hidden_size
        self.pre_norm = torch.nn.LayerNorm(size, 1e-6)
        self.linear_1 = torch.nn.Linear(size, wider * hidden)
        self.linear_2 = torch.nn.Linear(wider * hidden, hidden)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """``patches`` [..., size]; [..., hidden]."""
        return self.linear_2(torch.nn.functional.gelu(self.linear_1(self.pre_norm(patches))))
