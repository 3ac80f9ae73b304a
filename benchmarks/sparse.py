"""One layer's sparse attention for one token after a long context, beside attention to all of it.

``python -m benchmarks.sparse [--context 8192] [--most 2048] [--heads 128] [--index-heads 64]``

Latents of 512 channels, 64 rotated ones and indexer keys of 128, in bf16, as DeepSeek V3.2 has
them.  The indexer's choice, attention to what is chosen, and latent attention to all tokens take
turns over caches that are larger than the CPU's; reported are medians of the CPU time of one
thread in milliseconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from cpu_backend import ops, sparse_ops
from cpu_backend.attention.backend import parts

BLOCK, LATENT, KEY, INDEX = 128, 512, 576, 128
COLD_BYTES = 192e6
WARM_UP = 10


class Works:
    """Caches for as many requests as are cold, each asked in turn."""

    def __init__(self, context: int, most: int, heads: int, index_heads: int) -> None:
        pages = -(-context // BLOCK)
        self.requests = max(1, int(COLD_BYTES / (pages * BLOCK * KEY * 2)))
        blocks = pages * self.requests
        seeded = torch.Generator().manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=seeded).bfloat16()

        self.table = torch.randperm(blocks, generator=seeded).int().view(self.requests, 1, pages)
        self.starts, self.lens = torch.tensor([0, 1]).int(), torch.tensor([context]).int()
        self.query, self.output = random(1, heads, KEY), random(1, heads, LATENT)
        self.index_query, self.weights = random(1, index_heads, INDEX), random(1, index_heads)
        self.scores = torch.empty(1, pages * BLOCK)
        self.chosen = torch.zeros(1, most, dtype=torch.int32)
        self.plan = torch.ops._C.get_scheduler_metadata(
            1, heads, 1, KEY, self.lens, torch.bfloat16, self.starts, True, -1, "", True, None
        )
        rows, slots = random(blocks * BLOCK, KEY), torch.arange(blocks * BLOCK)
        self.rows = torch.zeros(blocks, BLOCK, KEY, dtype=torch.bfloat16)
        sparse_ops.cache_rows(rows, self.rows, slots)
        self.index_keys = torch.zeros(blocks, BLOCK, INDEX, dtype=torch.bfloat16)
        sparse_ops.cache_keys(random(blocks * BLOCK, INDEX), self.index_keys, slots)
        whole = torch.zeros(blocks, 1, BLOCK, KEY + LATENT, dtype=torch.bfloat16)
        self.keys, self.values = parts(whole, KEY, LATENT)
        torch.ops._C.cpu_attn_reshape_and_cache(
            rows, rows[:, :LATENT], self.keys, self.values, slots, ""
        )

    def places(self, request: int) -> sparse_ops.Places:
        return self.starts, self.lens, self.table[request]

    def choose(self, request: int) -> None:
        sparse_ops.choose_tokens(
            self.index_query,
            self.weights,
            self.index_keys,
            self.places(request),
            1.0,
            self.scores,
            self.chosen,
        )

    def attend_to_chosen(self, request: int) -> None:
        places = self.places(request)
        sparse_ops.sparse_attention(self.query, self.rows, self.output, places, self.chosen, 0.04)

    def attend_to_all(self, request: int) -> None:
        torch.ops._C.cpu_attention_with_kv_cache(
            self.query, self.keys, self.values, self.output, self.starts, self.lens, 0.04, True,
            None, -1, self.table[request], 0.0, self.plan, None, None,
        )  # fmt: skip


def milliseconds(work: Callable[[int], None], request: int) -> float:
    start = time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID)
    work(request)
    return (time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID) - start) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sparse", description=__doc__)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--most", type=int, default=2048, help="tokens that are chosen")
    parser.add_argument("--heads", type=int, default=128)
    parser.add_argument("--index-heads", type=int, default=64)
    parser.add_argument("--turns", type=int, default=50)
    given = parser.parse_args()
    ops.load()
    torch.set_num_threads(1)
    works = Works(given.context, given.most, given.heads, given.index_heads)
    times: dict[Callable[[int], None], list[float]] = {
        works.choose: [],
        works.attend_to_chosen: [],
        works.attend_to_all: [],
    }
    for turn in range(WARM_UP + given.turns):
        for work, found in times.items():
            found.append(milliseconds(work, turn % works.requests))
    for work, found in times.items():
        print(f"{work.__name__}: {statistics.median(found[WARM_UP:]):.2f} ms")


if __name__ == "__main__":
    main()
