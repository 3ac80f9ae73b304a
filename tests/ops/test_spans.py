"""Attention of steps with images whose tokens see each other in both directions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cpu_backend.attention.spans import cut
from tests.ops.attention_case import Case, Shape, make_case, run
from tests.reference.attention import Masking, attend

# A prompt with two images, the rest of one whose first tokens are cached, a decode step.
SHAPE = Shape(query_lens=(40, 20, 1), seq_lens=(40, 50, 9))
SPANS = {0: [(25, 36), (3, 18)], 1: [(10, 34)], 2: [(2, 5)]}


def expected(case: Case, window: int) -> torch.Tensor:
    """Token by token: each sees what it may of the keys before it, and its image's."""
    rows = []
    for request, (queries, length) in enumerate(zip(SHAPE.query_lens, SHAPE.seq_lens, strict=True)):
        for token in range(queries):
            place = length - queries + token
            ends = [last for first, last in SPANS[request] if first <= place <= last]
            seen = slice(max(0, place - window + 1) if window > 0 else 0, max([place, *ends]) + 1)
            row = int(case.starts[request]) + token
            key, value = case.keys[request][seen], case.values[request][seen]
            query = case.query[row : row + 1]
            rows.append(attend(query, key, value, case.scale, Masking(causal=False)))
    return torch.cat(rows)


@pytest.mark.parametrize("window", [-1, 27, 11])  # of 11 tokens: shorter than the images
def test_an_image_sees_itself_and_what_is_before(seeded: torch.Generator, window: int) -> None:
    case = make_case(SHAPE, torch.float32, seeded)
    pieces = cut(case.starts, torch.tensor(SHAPE.seq_lens), case.block_table, SPANS)
    assert pieces is not None
    lengths = pieces.query_start_loc.diff().tolist()
    shape = replace(SHAPE, query_lens=lengths, seq_lens=pieces.seq_lens.tolist())
    by_pieces = replace(case, shape=shape, block_table=pieces.block_table)
    masking = Masking(window=window)
    found = run(by_pieces, masking, dynamic_causal=pieces.dynamic_causal)
    torch.testing.assert_close(found.double(), expected(case, window).double(), atol=1e-5, rtol=0)
    causal = run(case, masking)
    assert torch.equal(found[-1], causal[-1])
    assert not torch.allclose(found, causal, atol=1e-2)
