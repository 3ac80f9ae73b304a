"""What models that hear have in common: a sound's states in place of a token's, then a text."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import gelu
from transformers import PreTrainedModel


class Hearing(PreTrainedModel):
    """A text model that reads what ``hear`` makes of sounds where a prompt has their tokens."""

    def forward(self, input_ids: torch.Tensor, **given: Any) -> Any:
        """``input_ids`` [1, n]; given: what ``hear`` takes, if there are sounds."""
        states = self.language_model.get_input_embeddings()(input_ids)
        given.pop("attention_mask", None)
        if given:
            heard = self.hear(**given)
            marked = input_ids[0] == self.config.audio_token_id
            where = marked.nonzero()[: len(heard), 0]
            states = states.index_copy(1, where, heard[None])
        return self.language_model(inputs_embeds=states, use_cache=False)

    def hear(self, **given: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] of all sounds, one after the other."""
        raise NotImplementedError


def whisper_states(
    tower: Any, spectrum: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """What Whisper's encoder makes of [1, bands, frames], fewer than it asks for; [1, n, d].
    mask: what is added to scores, [1, 1, n, n]."""
    states = gelu(tower.conv2(gelu(tower.conv1(spectrum)))).transpose(1, 2)
    states = states + tower.embed_positions.weight[: states.shape[1]]
    for layer in tower.layers:
        states = layer(states, mask)
        states = states[0] if isinstance(states, tuple) else states
    return tower.layer_norm(states)
