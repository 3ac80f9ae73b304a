"""What the machine gives right now: the yardstick of every figure, measured in the same run."""

from __future__ import annotations

import functools
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from cpu_backend import ops

_READ_BYTES = 256 << 20  # eight times a large last-level cache of a small machine


def best_seconds(
    work: Callable[[], object], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The fastest of several runs: a limit is what the machine can do, not what it did."""
    times = []
    for _ in range(repeats):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)


@functools.cache
def _buffer() -> torch.Tensor:
    ops.load()
    return torch.ones(_READ_BYTES // 4)


def read_bandwidth(repeats: int = 5, clock: Callable[[], float] = time.perf_counter) -> float:
    """Bytes per second that all threads together read from memory."""
    data = _buffer()
    return data.nbytes / best_seconds(lambda: ops.read_bytes(data), repeats, clock)


def fma_peak(repeats: int = 5, clock: Callable[[], float] = time.perf_counter) -> float:
    """fp32 operations per second of all threads together, in the registers alone."""
    ops.load()
    steps = 200_000
    operations = ops.multiply_adds(1) * steps
    return operations / best_seconds(lambda: ops.multiply_adds(steps), repeats, clock)


def int8_peak() -> float:
    """8-bit operations per second of one probe per thread (int8_peak.cpp, built for this CPU)."""
    source = Path(__file__).parent / "int8_peak.cpp"
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/int8_peak"
        subprocess.run(["c++", "-O2", "-march=native", source, "-o", program], check=True)

        def run(_: int) -> float:
            return float(subprocess.run([program], check=True, capture_output=True).stdout)

        threads = torch.get_num_threads()
        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(run, range(threads)))
