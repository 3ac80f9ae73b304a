"""What the machine gives right now: the yardstick of every figure, measured in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def best_seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """The fastest of several runs: a limit is what the machine can do, not what it did."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def read_bandwidth() -> float:
    """Bytes per second of reading 512 MiB with all threads."""
    data = torch.ones(1 << 27)
    return data.nbytes / best_seconds(data.sum)


def fma_peak() -> float:
    """fp32 operations per second of torch's own 1536-cubed product."""
    size = 1536
    a, b = torch.ones(size, size), torch.ones(size, size)
    return 2 * size**3 / best_seconds(lambda: a @ b)
