"""Collectives between ranks: time, share of the memory-copy bound, and gloo in the same run.

    python benchmarks/bench_collectives.py [--ranks 2] [--threads 1] [--dtype bfloat16]

Each rank is a process bound to its own cores.  The bound of an all-reduce is what its data costs on
the way through shared memory, whoever adds: one copy in and one copy out, on all ranks at once.
The three are measured in turn, several rounds of each; figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cpu_backend import ops

SIZES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 32 << 20)
ROUNDS = 7
ROUND_SECONDS = 0.03


class Rank:
    """One process of the measurement; all of them run the same calls in the same order."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.rank, self.size = options.rank, options.ranks
        # Before binding: gloo's own threads shall run on any core.
        dist.init_process_group(
            "gloo", init_method=f"file://{options.store}", rank=self.rank, world_size=self.size
        )
        cpus = sorted(os.sched_getaffinity(0))
        mine = cpus[self.rank * options.threads :][: options.threads]
        if len(mine) == options.threads:
            ops.bind_threads(tuple(mine))
        else:
            ops.set_num_threads(options.threads)
        name = Path(options.store).name
        self.handle = torch.ops._C.init_shm_manager(name, self.size, self.rank, options.threads)
        torch.ops._C.join_shm_manager(self.handle, name)

    def check(self, dtype: torch.dtype) -> None:
        """What is measured is right: ranks bring 1, 2, 3, ..."""
        for num_bytes in SIZES:
            data = torch.full((num_bytes // dtype.itemsize,), self.rank + 1.0, dtype=dtype)
            torch.ops._C.shm_allreduce(self.handle, data)
            assert (data == self.size * (self.size + 1) / 2).all()

    def time(self, work: Callable[[], object], repeats: int) -> float:
        """Seconds of one ``work``, the mean of ``repeats`` in a row on all ranks at once."""
        work()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        return (time.perf_counter() - start) / repeats

    def measure(self, num_bytes: int, dtype: torch.dtype) -> dict[str, Any]:
        data = torch.zeros(num_bytes // dtype.itemsize, dtype=dtype)
        inside, out = torch.empty_like(data), torch.empty_like(data)
        works: dict[str, Callable[[], object]] = {
            "ours": lambda: torch.ops._C.shm_allreduce(self.handle, data),
            "gloo": lambda: dist.all_reduce(data),
            "copies": lambda: (inside.copy_(data), out.copy_(inside)),
        }
        repeats = {}
        for name, work in works.items():
            once = torch.tensor([self.time(work, 3)])
            dist.all_reduce(once, op=dist.ReduceOp.MAX)  # the same count on all ranks
            repeats[name] = max(3, min(2000, int(ROUND_SECONDS / once.item())))
        times: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(ROUNDS):
            for name, work in works.items():
                times[name].append(self.time(work, repeats[name]))
        medians = {name: statistics.median(t) for name, t in times.items()}
        return {
            "bytes": num_bytes,
            **{f"{name}_us": seconds * 1e6 for name, seconds in medians.items()},
            "times_gloo": medians["gloo"] / medians["ours"],
            "share_of_copy_bound": medians["copies"] / medians["ours"],
        }


def run_rank(options: argparse.Namespace) -> None:
    library = ops.load()
    rank = Rank(options)
    dtype = getattr(torch, options.dtype)
    rank.check(dtype)
    rows = [rank.measure(size, dtype) for size in SIZES]
    if rank.rank:
        return
    print(
        f"all-reduce of {options.dtype}, {library.target}, "
        f"{options.ranks} ranks with {options.threads} thread(s) each"
    )
    for row in rows:
        print(
            f"{row['bytes'] >> 10:8} KiB  {row['ours_us']:9.1f} us  gloo {row['gloo_us']:9.1f} us"
            f"  {row['times_gloo']:5.1f} times as fast"
            f"  {row['share_of_copy_bound']:5.0%} of the bound"
        )
    if options.json:
        Path(options.json).write_text(json.dumps({**vars(options), "rows": rows}, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--json", help="write the rows here as well")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        run_rank(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        store = ["--store", f"{folder}/{uuid.uuid4().hex}"]
        command = [sys.executable, *sys.argv, *store]
        ranks = [subprocess.Popen([*command, "--rank", str(r)]) for r in range(options.ranks)]
        if any([rank.wait() for rank in ranks]):
            sys.exit("a rank failed")


if __name__ == "__main__":
    main()
