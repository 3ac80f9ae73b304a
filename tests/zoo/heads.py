"""Models of the host that ``transformers`` has without their heads."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    BertModel,
    BertPreTrainedModel,
    ModernBertModel,
    ModernBertPreTrainedModel,
    Qwen2Model,
    Qwen2PreTrainedModel,
)
from transformers.modeling_outputs import TokenClassifierOutput

# Of ColBERT's embeddings.  The config does not say it, as ColBERTv2's does not: told it, the host
# ends with "cannot assign module before Module.__init__() call".
WIDTH = 24


class Qwen2RewardModel(Qwen2PreTrainedModel):
    """Scores every token: Qwen2.5-Math's reward models."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.model = Qwen2Model(config)
        self.score = torch.nn.Sequential(
            torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, config.num_labels)
        )
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> Any:
        """``input_ids`` [1, n]; [1, n, labels] by a head in fp32: a number, or probabilities."""
        states = self.model(input_ids).last_hidden_state
        scores = self.score.float()(states.float())
        return TokenClassifierOutput(logits=scores if scores.shape[-1] == 1 else scores.softmax(-1))


class ColBert(BertPreTrainedModel):
    """Embeds every token."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.linear = torch.nn.Linear(config.hidden_size, WIDTH, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> Any:
        """``input_ids`` [1, n]; [1, n, WIDTH] of length 1 by a head in fp32."""
        return _embeddings(self.bert(input_ids).last_hidden_state, self.linear)


class ModernColBert(ModernBertPreTrainedModel):
    """Embeds every token."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = ModernBertModel(config)
        self.linear = torch.nn.Linear(config.hidden_size, WIDTH, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> Any:
        """``input_ids`` [1, n]; [1, n, WIDTH] of length 1 by a head in fp32."""
        return _embeddings(self.model(input_ids).last_hidden_state, self.linear)


def _embeddings(states: torch.Tensor, linear: torch.nn.Linear) -> Any:
    embeddings = linear.float()(states.float())
    return TokenClassifierOutput(logits=torch.nn.functional.normalize(embeddings, dim=-1))
