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
    """A result: rates and limits per second, ``share`` of the lower limit reached by the median."""

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
    error: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def copies_for(nbytes: int) -> int:
    """So many inputs of this size that each is cold when its turn comes."""
    return max(1, min(256, -(-ROTATED_BYTES // nbytes)))


def measure(work: Work, seconds: float) -> Row:
    """Runs for about this long, at least five times; limits are taken before and after."""
    read, flop = read_bandwidth(), fma_peak()
    work.run(0)
    times: list[float] = []
    end = time.perf_counter() + seconds
    turn = 0
    while len(times) < 5 or time.perf_counter() < end:
        turn += 1
        start = time.perf_counter()
        work.run(turn % work.copies)
        times.append(time.perf_counter() - start)
    read, flop = max(read, read_bandwidth()), max(flop, fma_peak())
    middle = statistics.median(times)
    bound = max(work.nbytes / read, work.flops / flop)
    return Row(
        work.kernel,
        work.shape,
        work.dtype,
        work.size,
        middle,
        min(times),
        max(times),
        work.nbytes / middle,
        work.flops / middle,
        read,
        flop,
        bound / middle,
        work.error,
    )
