"""Spans of a prompt, an image's tokens, that see each other in both directions.

The kernel knows causal and other requests.  So a request is cut where its spans begin and end: each
piece is one for the kernel, the pieces of a span are not causal, and a piece's sequence ends where
the piece does.  The keys of the whole step lie in the cache before anything attends.  A sliding
window hides what lies further back of a span's own tokens, too, and nothing behind them: Gemma 4.
The host leaves spans out that are longer than the window for the other models, whose spans ignore
it (Gemma 3); theirs are not that long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

Ranges = dict[int, list[tuple[int, int]]]


@dataclass(frozen=True)
class Pieces:
    """What attention needs of a step, by pieces: query_start_loc [pieces + 1], seq_lens [pieces]
    and block_table [pieces, pages] int32, dynamic_causal [pieces] bool; plan: of these."""

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    dynamic_causal: torch.Tensor
    plan: torch.Tensor | None = None


def cut(
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    ranges: Ranges | None,
) -> Pieces | None:
    """The pieces of all requests; None where no query of this step lies in a span.

    ranges: by request, the first and the last position of each span, in any order and apart.
    """
    starts, lengths = query_start_loc.tolist(), seq_lens.tolist()
    owners, ends, queries, causal = [], [], [], []
    for request, length in enumerate(lengths[: len(starts) - 1]):
        first = length - (starts[request + 1] - starts[request])
        for begin, end, inside in _pieces(first, length, (ranges or {}).get(request, ())):
            owners.append(request)
            ends.append(end)
            queries.append(end - begin)
            causal.append(not inside)
    if all(causal):
        return None
    places = torch.tensor([0, *queries]).cumsum(0)
    return Pieces(
        places.to(torch.int32),
        torch.tensor(ends, dtype=torch.int32),
        block_table[torch.tensor(owners)],
        torch.tensor(causal),
    )


def _pieces(
    first: int, length: int, spans: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int, bool]]:
    """The positions [first, length) cut into [begin, end) and whether that is a span."""
    position = first
    for start, last in sorted(spans):
        begin, end = max(start, first), min(last + 1, length)
        if begin >= end or start == last:
            continue
        if position < begin:
            yield position, begin, False
        yield begin, end, True
        position = end
    if position < length:
        yield position, length, False


def whole(computed: int, tokens: int, spans: Iterable[tuple[int, int]]) -> int:
    """How many of the ``tokens`` after the ``computed`` ones to take, so that the step does not end
    within one of the ``spans`` [begin, end): none, if it begins there and the rest is too long."""
    end = computed + tokens
    for begin, behind in spans:
        if begin < end < behind:
            return max(begin - computed, 0)
    return tokens
