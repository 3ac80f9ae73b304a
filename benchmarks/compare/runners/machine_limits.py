"""What the machine gives now, with all threads: benchmarks/limits.py for `protocol.py`.

With ``settings["cpu_time"]``, for one thread, seconds are those of the process: what it gives while
nobody else has the core.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from protocol import answer_requests

sys.path.append(str(Path(__file__).resolve().parents[2]))


def start(settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    import torch

    torch.set_num_threads(settings["threads"])
    import limits

    clock = time.process_time if settings.get("cpu_time") else time.perf_counter
    return (limits, clock), {}


def answer(started: tuple[Any, Callable[[], float]], _: dict[str, Any]) -> dict[str, float]:
    limits, clock = started
    return {
        "bytes_per_s": limits.read_bandwidth(clock=clock),
        "flop_per_s": limits.fma_peak(clock=clock),
    }


if __name__ == "__main__":
    answer_requests(start, answer)
