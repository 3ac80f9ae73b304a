"""What the machine gives now, with all threads: benchmarks/limits.py for `protocol.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from protocol import answer_requests

sys.path.append(str(Path(__file__).resolve().parents[2]))


def start(settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    import torch

    torch.set_num_threads(settings["threads"])
    import limits

    return limits, {}


def answer(limits: Any, _: dict[str, Any]) -> dict[str, float]:
    return {"bytes_per_s": limits.read_bandwidth(), "flop_per_s": limits.fma_peak()}


if __name__ == "__main__":
    answer_requests(start, answer)
