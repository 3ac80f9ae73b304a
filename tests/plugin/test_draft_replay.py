"""Draft models whose forwards are replayed: one result or two, and inputs that they change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cpu_backend import ops
from cpu_backend.attention.backend import StepMetadata
from cpu_backend.worker import draft_replay
from cpu_backend.worker.draft_replay import DraftReplay
from cpu_backend.worker.step_replay import StepReplay

ops.load()
TOKENS, HIDDEN = 3, 4


class Draft(torch.nn.Module):
    """Adds to the states that it is given, as a residual layer does."""

    def __init__(self, gives_two: bool) -> None:
        super().__init__()
        self.table = torch.arange(32.0)[:, None].repeat(1, HIDDEN)
        self.gives_two = gives_two
        self.calls = 0

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
    ) -> Any:
        self.calls += 1
        embedded = self.table[input_ids] if inputs_embeds is None else inputs_embeds
        hidden_states += embedded + positions[:, None]
        return (hidden_states * 2, hidden_states * 3) if self.gives_two else hidden_states * 2


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The host's forward context with one group of layers."""
    int32 = torch.zeros(TOKENS + 1, dtype=torch.int32)
    group = StepMetadata(
        TOKENS, int32, int32[:TOKENS].clone(), int32[None].clone(), torch.zeros(TOKENS).long(),
        torch.zeros(64, dtype=torch.int8), causal=True, dynamic_causal=None, encoder_cache=None,
    )  # fmt: skip
    context = SimpleNamespace(attn_metadata={"layer": group})
    monkeypatch.setattr(draft_replay, "get_forward_context", lambda: context)
    return context


@pytest.mark.parametrize("gives_two", [True, False])
def test_what_it_gives(gives_two: bool, step: SimpleNamespace) -> None:
    draft = Draft(gives_two)
    replay = StepReplay(lambda: [draft.table])
    DraftReplay(draft, replay)
    ids, positions = torch.zeros(TOKENS).long(), torch.zeros(TOKENS).long()
    states = torch.zeros(TOKENS, HIDDEN)
    for number, calls in ((1, 1), (2, 2), (3, 2), (4, 2)):
        ids.copy_(torch.arange(TOKENS) * 5 + number)
        positions.fill_(number)
        states.fill_(0.5 * number)
        result = draft(input_ids=ids, positions=positions, hidden_states=states, inputs_embeds=None)
        expected = states + draft.table[ids] + number
        if gives_two:
            assert torch.equal(result[0], expected * 2)
            assert torch.equal(result[1], expected * 3)
        else:
            assert torch.equal(result, expected * 2)
        assert draft.calls == calls, replay.given_up


@pytest.mark.parametrize("why", ["embedded", "no attention"])
def test_its_own_forward(why: str, step: SimpleNamespace) -> None:
    draft = Draft(gives_two=True)
    DraftReplay(draft, StepReplay(lambda: [draft.table]))
    embedded = torch.ones(TOKENS, HIDDEN) if why == "embedded" else None
    if why == "no attention":
        step.attn_metadata = None
    for calls in (1, 2, 3):
        draft(
            input_ids=torch.full((TOKENS,), calls),
            positions=torch.arange(TOKENS),
            inputs_embeds=embedded,
            hidden_states=torch.zeros(TOKENS, HIDDEN),
        )
        assert draft.calls == calls
