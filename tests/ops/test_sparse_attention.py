"""Sparse latent attention: its caches, the choice of tokens, and attention to those chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from cpu_backend import ops, sparse_ops
from tests.ops.accuracy import assert_accurate
from tests.reference import sparse_attention as reference

BLOCK = 32


@dataclass(frozen=True)
class Sizes:
    heads: int
    key_dim: int
    value_dim: int
    index_heads: int
    index_dim: int
    most: int

    @property
    def scale(self) -> float:
        return float(self.key_dim**-0.5)


SIZES = [
    Sizes(16, 576, 512, 64, 128, 20),
    Sizes(3, 80, 48, 5, 32, 16),
    Sizes(130, 32, 32, 30, 16, 1),
    Sizes(6, 64, 48, 7, 48, 600),
]


class Model:
    """The tokens of some sequences, [seq_len, ...] each, in one pair of caches; where nothing was
    written these are NaN."""

    def __init__(
        self, sizes: Sizes, seq_lens: Sequence[int], dtype: torch.dtype, seeded: torch.Generator
    ) -> None:
        def random(*shape: int) -> list[torch.Tensor]:
            return [torch.randn((n, *shape), generator=seeded).to(dtype) for n in seq_lens]

        self.sizes, self.dtype = sizes, dtype
        self.query, self.keys = random(sizes.heads, sizes.key_dim), random(sizes.key_dim)
        self.index_query = random(sizes.index_heads, sizes.index_dim)
        self.index_keys, self.weights = random(sizes.index_dim), random(sizes.index_heads)
        width = max(-(-n // BLOCK) for n in seq_lens)
        blocks = torch.randperm(len(seq_lens) * width + 1, generator=seeded).int()
        self.block_table = blocks[:-1].view(-1, width)
        pages = (len(blocks), BLOCK)
        # Blocks lie apart, as those of a pool may.
        self.rows = torch.full((*pages, sizes.key_dim + 16), float("nan"), dtype=dtype).flatten(1)
        self.rows = self.rows[:, : BLOCK * sizes.key_dim].unflatten(1, (BLOCK, -1))
        self.index_cache = torch.full((*pages, sizes.index_dim), float("nan"), dtype=dtype)
        self.scores = torch.full((7, width * BLOCK), float("nan"))

    def places(self, chunks: Sequence[tuple[int, int, int]]) -> sparse_ops.Places:
        starts = torch.tensor([0, *(end - begin for _, begin, end in chunks)]).cumsum(0).int()
        seq_lens = torch.tensor([end for *_, end in chunks]).int()
        return starts, seq_lens, self.block_table[[i for i, *_ in chunks]].contiguous()

    def slots(self, chunks: Sequence[tuple[int, int, int]]) -> torch.Tensor:
        found = []
        for i, begin, end in chunks:
            at = torch.arange(begin, end)
            found.append(self.block_table[i].long()[at // BLOCK] * BLOCK + at % BLOCK)
        return torch.cat(found)

    def batch(
        self, rows: list[torch.Tensor], chunks: Sequence[tuple[int, int, int]]
    ) -> torch.Tensor:
        return torch.cat([rows[i][begin:end] for i, begin, end in chunks])

    def run(
        self, chunks: Sequence[tuple[int, int, int]]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """One step: of each sequence named the tokens [begin, end); what they give, and what was
        chosen for them."""
        places, slots = self.places(chunks), self.slots(chunks)
        sparse_ops.cache_rows(self.batch(self.keys, chunks), self.rows, slots)
        sparse_ops.cache_keys(self.batch(self.index_keys, chunks), self.index_cache, slots)
        chosen = torch.full((len(slots) + 2, self.sizes.most), -1, dtype=torch.int32)
        sparse_ops.choose_tokens(
            self.batch(self.index_query, chunks), self.batch(self.weights, chunks),
            self.index_cache, places, 0.5, self.scores, chosen,
        )  # fmt: skip
        shape = (len(slots), self.sizes.heads, self.sizes.value_dim)
        output = torch.full(shape, float("nan"), dtype=self.dtype)
        query = self.batch(self.query, chunks)
        sparse_ops.sparse_attention(query, self.rows, output, places, chosen, self.sizes.scale)
        assert (chosen[len(slots) :] == -1).all()
        lengths = [end - begin for _, begin, end in chunks]
        return list(output.split(lengths)), list(chosen[: len(slots)].split(lengths))

    def check(
        self, sequence: int, begin: int, end: int, output: torch.Tensor, chosen: torch.Tensor
    ) -> None:
        most = self.sizes.most
        query, keys = self.index_query[sequence][begin:end], self.index_keys[sequence][:end]
        exact = reference.scores(
            query.double(), self.weights[sequence][begin:end].double(), keys.double(), 0.5
        )
        picked = []
        for i, row in enumerate(chosen.tolist()):
            position = begin + i
            if position < most:
                assert set(row) == {-1}, "a token that sees no more was computed"
                picked.append(list(range(position + 1)))
                continue
            assert row == sorted(set(row))
            assert 0 <= row[0] <= row[-1] <= position
            # None that was left out is better than one that was picked, but for rounding.
            inside = torch.zeros(position + 1, dtype=torch.bool)
            inside[row] = True
            seen = exact[i, : position + 1]
            if most <= position:
                slack = 1e-5 * float(seen.abs().max())
                assert float(seen[inside].min()) >= float(seen[~inside].max()) - slack
            picked.append(row)
        assert_accurate(
            output,
            lambda q, k: reference.attend(q, k, self.sizes.value_dim, picked, self.sizes.scale),
            self.query[sequence][begin:end],
            self.keys[sequence][:end],
            slack=2.0**-7 if self.dtype == torch.bfloat16 else 0.0,
        )


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_prompts_chunks_and_decodes_in_one_step(
    sizes: Sizes, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    model = Model(sizes, [70, 33, 1, 700], dtype, seeded)
    model.run([(0, 0, 69), (3, 0, 690)])
    step = [(0, 69, 70), (1, 0, 33), (2, 0, 1), (3, 690, 700)]
    for chunk, output, chosen in zip(step, *model.run(step), strict=True):
        model.check(*chunk, output, chosen)


@pytest.mark.parametrize("most", [16, 600, 1100])
def test_a_result_depends_on_neither_batch_nor_chunks_nor_threads(
    most: int, dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    torch.set_num_threads(2)
    model = Model(Sizes(6, 64, 48, 9, 32, most), [1100, 40], dtype, seeded)
    (whole, _), (chosen, _) = model.run([(0, 0, 1100), (1, 0, 40)])
    for begin, end in [(0, 17), (17, 1050), (1050, 1051), (1051, 1100)]:
        [alone], [own] = model.run([(0, begin, end)])
        assert torch.equal(alone, whole[begin:end])
        assert torch.equal(own, chosen[begin:end])
        (_, together), _ = model.run([(1, 0, 40), (0, begin, end)])
        assert torch.equal(together, whole[begin:end])
    for threads_now in (1, 3):  # with 3, two threads share the last token
        torch.set_num_threads(threads_now)
        [alone], [own] = model.run([(0, 1099, 1100)])
        assert torch.equal(alone, whole[1099:])
        assert torch.equal(own, chosen[1099:])


def test_equal_scores_pick_the_earlier_tokens(seeded: torch.Generator) -> None:
    model = Model(Sizes(2, 32, 16, 3, 16, 5), [40], torch.float32, seeded)
    model.index_keys[0][:] = 1.0
    model.index_keys[0][::4] = 2.0
    model.index_query[0][:] = 1.0
    model.weights[0][:] = 1.0
    _, [chosen] = model.run([(0, 0, 40)])
    assert chosen[39].tolist() == [0, 4, 8, 12, 16]
    assert chosen[9].tolist() == [0, 1, 2, 4, 8]
    model.weights[0][:] = -1.0  # now the others are better
    _, [chosen] = model.run([(0, 0, 40)])
    assert chosen[39].tolist() == [1, 2, 3, 5, 6]
    model.weights[0][:] = 0.0
    _, [chosen] = model.run([(0, 0, 40)])
    assert chosen[39].tolist() == [0, 1, 2, 3, 4]


def test_what_was_not_chosen_is_not_read(dtype: torch.dtype, seeded: torch.Generator) -> None:
    """Rows become NaN where the last token has not chosen them."""
    model = Model(SIZES[1], [300], dtype, seeded)
    [output], [chosen] = model.run([(0, 0, 300)])
    rows = model.rows.clone()
    model.rows.fill_(float("nan"))
    for position in chosen[299].tolist():
        block, offset = int(model.block_table[0, position // BLOCK]), position % BLOCK
        model.rows[block, offset] = rows[block, offset]
    again = torch.empty_like(output[299:])
    sparse_ops.sparse_attention(
        model.query[0][299:], model.rows, again, model.places([(0, 299, 300)]),
        chosen[299:].contiguous(), model.sizes.scale,
    )  # fmt: skip
    assert torch.equal(again, output[299:])


def test_slots_below_zero_are_not_written(dtype: torch.dtype, seeded: torch.Generator) -> None:
    model = Model(SIZES[1], [20], dtype, seeded)
    slots = model.slots([(0, 0, 20)])
    slots[5:9] = -1
    sparse_ops.cache_rows(model.keys[0], model.rows, slots)
    sparse_ops.cache_keys(model.index_keys[0], model.index_cache, slots)
    assert int(model.rows.isnan().logical_not().sum()) == 16 * model.sizes.key_dim
    assert int(model.index_cache.isnan().logical_not().sum()) == 16 * model.sizes.index_dim
    block, offset = int(slots[19]) // BLOCK, int(slots[19]) % BLOCK
    assert torch.equal(model.rows[block, offset], model.keys[0][19])


def test_a_step_can_be_recorded(dtype: torch.dtype, seeded: torch.Generator) -> None:
    """Over the edge from all tokens to those chosen."""
    model = Model(SIZES[1], [40], dtype, seeded)
    model.run([(0, 0, 10)])
    sizes = model.sizes
    of_model = (model.keys, model.index_keys, model.index_query, model.weights, model.query)
    inputs = [rows[0][10:11].clone() for rows in of_model]
    chosen = torch.full((1, sizes.most), -1, dtype=torch.int32)

    def forward(places: sparse_ops.Places, slots: torch.Tensor) -> torch.Tensor:
        keys, index_keys, index_query, weights, query = inputs
        sparse_ops.cache_rows(keys, model.rows, slots)
        sparse_ops.cache_keys(index_keys, model.index_cache, slots)
        sparse_ops.choose_tokens(
            index_query, weights, model.index_cache, places, 0.5, model.scores, chosen
        )
        output = torch.empty(1, sizes.heads, sizes.value_dim, dtype=dtype)
        sparse_ops.sparse_attention(query, model.rows, output, places, chosen, sizes.scale)
        return output

    def data(position: int) -> tuple[sparse_ops.Places, torch.Tensor]:
        chunk = [(0, position, position + 1)]
        return model.places(chunk), model.slots(chunk)

    places, slots = data(10)
    memory = [*inputs, model.rows, model.index_cache, model.scores, chosen]
    recording = ops.StepRecording([*places, slots], memory)
    with recording:
        recording.output = forward(places, slots)
    assert recording.error == ""
    for position in range(11, 40):
        for row, rows in zip(inputs, of_model, strict=True):
            row.copy_(rows[0][position : position + 1])
        recording.fill_with_garbage()
        places, slots = data(position)
        replayed = recording.replay([*places, slots]).clone()
        assert torch.equal(replayed, forward(places, slots))
        model.check(0, position, position + 1, replayed, chosen)


def test_what_does_not_fit_is_said(seeded: torch.Generator) -> None:
    model = Model(SIZES[1], [40], torch.float32, seeded)
    model.scores = model.scores[:, :32].contiguous()
    with pytest.raises(ValueError, match="with room for 40"):
        model.run([(0, 0, 40)])
    with pytest.raises(ValueError, match="do not fit"):
        sparse_ops.cache_rows(model.keys[0], model.index_cache, torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="does not lie in a key"):
        sparse_ops.sparse_attention(
            model.query[0], model.rows, torch.empty(40, 3, 96), model.places([(0, 0, 40)]),
            torch.zeros(40, 16, dtype=torch.int32), 1.0,
        )  # fmt: skip
