"""Verification of drafts and the inputs of draft models, request by request."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def requests(ends: torch.Tensor) -> Iterator[tuple[int, range]]:
    """Each request and where its drafts lie; ends [requests]: the cumulated numbers of drafts."""
    bounds = [0, *ends.tolist()]
    for request in range(len(ends)):
        yield request, range(bounds[request], bounds[request + 1])


def verified(
    ends: torch.Tensor,
    drafts: torch.Tensor,
    accepted: torch.Tensor,
    instead: torch.Tensor,
    bonus: torch.Tensor,
    chosen: torch.Tensor,
    width: int,
) -> list[list[int]]:
    """Rows of ``width`` tokens, -1 behind the last; of requests that are not chosen -1 alone."""
    rows = []
    for request, places in requests(ends):
        row: list[int] = []
        for place in places:
            row.append(int(drafts[place] if accepted[place] else instead[place]))
            if not accepted[place]:
                break
        else:
            row.append(int(bonus[request]))
        row = row if chosen[request] else []
        rows.append(row + [-1] * (width - len(row)))
    return rows


def recovered(
    ends: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    noise: torch.Tensor,
) -> list[int]:
    """argmax of what the target has more than the draft, times the request's noise."""
    tokens = []
    for request, places in requests(ends):
        for place in places:
            left = target_probs[place].clone()
            if draft_probs is None:
                left[drafts[place]] = 0.0
            else:
                left = (left - draft_probs[place]).clamp(min=0.0)
            score = left * noise[request]
            tokens.append(int((score == score.max()).nonzero()[0]))
    return tokens


def drafts_from_text(text: list[int], least: int, most: int, count: int) -> list[int]:
    """What followed the first of the longest earlier occurrences of the last tokens."""
    for size in range(min(most, len(text) - 1), least - 1, -1):
        for start in range(len(text) - size):
            if text[start : start + size] == text[-size:]:
                return text[start + size : start + size + count]
    return []
