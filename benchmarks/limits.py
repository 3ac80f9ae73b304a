"""What the machine gives right now: the yardstick of every figure, measured in the same run."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
