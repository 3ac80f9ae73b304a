"""Heads of the Qwen models that see, which ``transformers`` has without them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Qwen2VLModel,
    Qwen2VLPreTrainedModel,
    Qwen3_5Model,
    Qwen3_5PreTrainedModel,
    Qwen3VLModel,
    Qwen3VLPreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput

WIDTH = 24  # of embeddings
LOGIT_MEAN = 2.65  # of jina-reranker-m0's scores, which its own code subtracts


class Qwen3VLTokens(Qwen3VLPreTrainedModel):
    """Embeds every token, those of images too."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = Qwen3VLModel(config)
        self.post_init()

    def forward(self, **inputs: torch.Tensor) -> Any:
        """Of one text and its images; [1, n, hidden] of length 1."""
        return _normalized(self.model(**inputs).last_hidden_state)


class ColQwen3(Qwen3VLPreTrainedModel):
    """The same by a projection."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = Qwen3VLModel(config)
        self.custom_text_proj = torch.nn.Linear(config.text_config.hidden_size, WIDTH)
        self.post_init()

    def forward(self, **inputs: torch.Tensor) -> Any:
        """Of one text and its images; [1, n, WIDTH] of length 1 by a head in fp32."""
        states = self.model(**inputs).last_hidden_state
        return _normalized(self.custom_text_proj.float()(states.float()))


class ColQwen3_5(Qwen3_5PreTrainedModel):  # noqa: N801 (the host's name)
    """The same on Qwen3.5."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = Qwen3_5Model(config)
        self.custom_text_proj = torch.nn.Linear(config.text_config.hidden_size, WIDTH)
        self.post_init()

    forward = ColQwen3.forward


class JinaVLForSequenceClassification(Qwen2VLPreTrainedModel):
    """Scores a document for a query, both of which may have images."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        size = config.text_config.hidden_size
        self.model = Qwen2VLModel(config)
        self.score = torch.nn.Sequential(
            torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, 1)
        )
        self.post_init()

    def forward(self, **inputs: torch.Tensor) -> Any:
        """Of one text and its images; [1, 1] of the last token by a head in fp32."""
        states = self.model(**inputs).last_hidden_state[:, -1]
        return SequenceClassifierOutput(logits=self.score.float()(states.float()) - LOGIT_MEAN)


def _normalized(states: torch.Tensor) -> Any:
    return TokenClassifierOutput(logits=torch.nn.functional.normalize(states.float(), dim=-1))
