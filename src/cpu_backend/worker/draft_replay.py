"""Draft models without Python: their forwards are recorded and replayed as the model's are."""

from __future__ import annotations

from typing import Any

import torch
from vllm.forward_context import get_forward_context

from cpu_backend.worker.step_replay import StepReplay, distinct


class DraftReplay:
    """Stands in for ``draft_model.forward``, which the host's proposers call once per token.

    They keep the inputs in place; a draft model gives one tensor, or two of one width: what makes
    logits and what the next forward reads.
    """

    def __init__(self, draft_model: torch.nn.Module, replay: StepReplay) -> None:
        self._own_forward = draft_model.forward
        self._replay = replay
        self._gives_two = False
        draft_model.forward = self

    def __call__(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
        **hidden_states: torch.Tensor,
    ) -> Any:
        """hidden_states: none, or the tensor [tokens, hidden] of that name."""
        groups = distinct(get_forward_context().attn_metadata)
        if input_ids is None or inputs_embeds is not None or not groups:
            return self._own_forward(
                input_ids=input_ids,
                positions=positions,
                inputs_embeds=inputs_embeds,
                **hidden_states,
            )

        def forward() -> torch.Tensor:
            """Of copies: models add to what they are given, which a recording has to find."""
            copies = {name: states.clone() for name, states in hidden_states.items()}
            result = self._own_forward(input_ids=input_ids, positions=positions, **copies)
            self._gives_two = isinstance(result, tuple)
            return torch.cat(result, dim=-1) if self._gives_two else result

        # Tokens are in the last dimension.
        inputs = (positions, input_ids, *(states.T for states in hidden_states.values()))
        result = self._replay.run(forward, inputs, groups)
        return result.chunk(2, dim=-1) if self._gives_two else result
