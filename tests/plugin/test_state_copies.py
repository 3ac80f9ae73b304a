"""Copies of states from slot to slot."""

from __future__ import annotations

import pytest
import torch

from cpu_backend.worker.state_copies import batch_memcpy, copy_after_step, copy_before_step


def test_each_copy_takes_its_bytes_and_no_others() -> None:
    pool = torch.arange(64, dtype=torch.uint8)
    before, first = pool.clone(), pool.data_ptr()
    batch_memcpy(
        torch.tensor([first, first + 20]),
        torch.tensor([first + 32, first + 22]),  # the second overlaps with what it copies
        torch.tensor([7, 6], dtype=torch.int32),
        BLOCK_SIZE=1024,
    )
    expected = before.clone()
    expected[32:39], expected[22:28] = before[:7], before[20:26]
    assert torch.equal(pool, expected)


BLOCK = 4  # tokens
PLACES = 3 + 2  # of four taps and two drafts


class Pool:
    """States of one convolution and one recurrence in pages, and a block table of three requests.

    Of a request's blocks the last two are for drafts.
    """

    def __init__(self, channels_first: bool) -> None:
        self.channels_first = channels_first
        shape = (6, PLACES) if channels_first else (PLACES, 6)
        pages = torch.arange(12 * 100, dtype=torch.float32).view(12, 100)
        self.pages = pages
        self.conv = pages[:, :30].view(12, *shape)
        self.recurrent = pages[:, 30:50].view(12, 4, 5)
        self.table = torch.tensor(
            [[1, 2, 3, 4, 0], [5, 6, 7, 0, 0], [8, 9, 10, 11, 0]], dtype=torch.int32
        )

    def inputs(self, block: int) -> torch.Tensor:
        """[channels, places]"""
        return self.conv[block] if self.channels_first else self.conv[block].T

    def described(self) -> tuple[object, ...]:
        """As the host describes them to its kernels."""
        rows = (6, 4 * PLACES) if self.channels_first else (0, 0)
        return (
            torch.tensor([self.table.data_ptr()]),
            self.table.stride(0),
            torch.tensor([self.conv.data_ptr(), self.recurrent.data_ptr()]),
            torch.tensor([400, 400]),
            torch.tensor([4, 4], dtype=torch.int32),
            torch.tensor([1 if self.channels_first else 6, 20]),
            torch.tensor([PLACES, 0], dtype=torch.int32),
            torch.tensor([0, 0], dtype=torch.int32),
            torch.tensor([rows[0], 0], dtype=torch.int32),
            torch.tensor([rows[1], 0]),
        )

    def assert_only(self, before: torch.Tensor, copies: dict[int, tuple[int, int, int]]) -> None:
        """copies: by block, which block its convolution's inputs came from, after how many of its
        tokens, and which one its recurrent state."""
        old = Pool(self.channels_first)
        old.pages.copy_(before)
        for block in range(12):
            of_conv, accepted, of_recurrent = copies.get(block, (block, 0, block))
            kept = PLACES - accepted
            assert torch.equal(self.inputs(block)[:, :kept], old.inputs(of_conv)[:, accepted:]), (
                block
            )
            assert torch.equal(self.recurrent[block], old.recurrent[of_recurrent]), block
        assert torch.equal(self.pages[:, 50:], before[:, 50:]), "the rest of each page"


def counts(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("channels_first", [False, True])
def test_a_blocks_last_state_is_kept_where_drafts_went_beyond_it(channels_first: bool) -> None:
    """The first request has 3 tokens and is given one and two drafts, of which both are accepted;
    of the second one's none; the third one's accepted drafts end with its block."""
    pool = Pool(channels_first)
    before, accepted = pool.pages.clone(), counts(3, 1, 3)
    copy_after_step(
        counts(3, 1, 3), counts(1, 1, 0), counts(3, 3, 3), counts(3, 3, 1), counts(2, 2, 2),
        *pool.described(), accepted, None, 3, block_size=BLOCK, COPY_BLOCK_SIZE=1024,
        CONV_STATE_DIM_FIRST=channels_first, TEMPORAL_TILES=16,
    )  # fmt: skip
    # Tokens 3, 4 and 5 left their states in blocks 2, 3 and 4 of the pool: that of token 3, the
    # first one's last, goes to block 1.  The second one's token 3 ends its block as well.  The
    # third one's tokens are 1, 2 and 3, whose state is in the pool's block 10.
    pool.assert_only(before, {1: (2, 0, 2), 5: (6, 0, 6), 8: (8, 2, 10)})
    assert accepted.tolist() == [3, 1, 1]


@pytest.mark.parametrize("channels_first", [False, True])
def test_a_state_goes_along_to_the_next_block(channels_first: bool) -> None:
    """After one of two drafts; the second request is new, the third stays where it is."""
    pool = Pool(channels_first)
    before = pool.pages.clone()
    copy_before_step(
        counts(1, 0, 1), counts(0, -1, 1), counts(1, 0, 1), *pool.described(), None, 3,
        COPY_BLOCK_SIZE=1024, CONV_STATE_DIM_FIRST=channels_first, HAS_IDX_MAPPING=False,
        TEMPORAL_TILES=16,
    )  # fmt: skip
    pool.assert_only(before, {2: (1, 1, 2)})
