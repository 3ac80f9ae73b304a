"""Timing one op: cold inputs by rotation, limits of the same minute, median and spread."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from limits import fma_peak, read_bandwidth

ROTATED_BYTES = 192 << 20  # read between two uses of one input: more than the caches hold


@dataclass(frozen=True)
class Work:
    """One op on inputs that take turns.

    ``run(i)`` computes on the i-th of ``copies`` inputs; ``nbytes`` and ``flops`` are what one call
    must at least read from memory and compute; ``error`` is its relative distance from a reference.
    """

    kernel: str
    shape: str
    dtype: str
    size: str
    run: Callable[[int], object]
    copies: int
    nbytes: int
    flops: int
    error: float


@dataclass(frozen=True)
class Row:
    """A result: rates and limits per second, all of them medians over the same rounds.

    ``share`` is the part reached of the lower limit; ``best_share`` compares the fastest call with
    the highest limits seen, which on a shared machine says more about the kernel.
    """

    kernel: str
    shape: str
    dtype: str
    size: str
    seconds: float
    fastest: float
    slowest: float
    bytes_per_s: float
    flop_per_s: float
    read_limit: float
    flop_limit: float
    share: float
    best_share: float
    error: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def copies_for(nbytes: int) -> int:
    """So many inputs of this size that each is cold when its turn comes."""
    return max(1, min(256, -(-ROTATED_BYTES // nbytes)))


def measure(work: Work, seconds: float) -> Row:
    """Rounds of about 10 ms of work, then both limits, for at least five rounds."""
    work.run(0)
    times: list[float] = []
    read: list[float] = []
    flop: list[float] = []
    end = time.perf_counter() + seconds
    turn = 0
    while len(read) < 5 or time.perf_counter() < end:
        until = time.perf_counter() + 0.01
        while True:
            turn += 1
            start = time.perf_counter()
            work.run(turn % work.copies)
            stop = time.perf_counter()
            times.append(stop - start)
            if stop > until:
                break
        read.append(read_bandwidth(repeats=1))
        flop.append(fma_peak(repeats=1))
    middle, fastest = statistics.median(times), min(times)
    read_limit, flop_limit = statistics.median(read), statistics.median(flop)
    bound = max(work.nbytes / read_limit, work.flops / flop_limit)
    best_bound = max(work.nbytes / max(read), work.flops / max(flop))
    return Row(
        work.kernel,
        work.shape,
        work.dtype,
        work.size,
        middle,
        fastest,
        max(times),
        work.nbytes / middle,
        work.flops / middle,
        read_limit,
        flop_limit,
        bound / middle,
        best_bound / fastest,
        work.error,
    )
