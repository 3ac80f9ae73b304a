"""What packing a weight costs at load, for each way to quantize it: CPU time of one thread.

    python -m benchmarks.packing

To compare builds, run it in turns with PYTHONPATH set to the folder of another one
(``pip install --target FOLDER .``).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from cpu_backend import ops
from cpu_backend.layers.quantization import at_load

SHAPE = (8192, 2048)  # out and in
ROUNDS = 7
PACKED: dict[str, Callable[[torch.Tensor], object]] = {
    "bf16": ops.PackedLinear,
    "cpu_int8": at_load.pack_int8,
    "cpu_int4": at_load.pack_int4,
}


def nanoseconds(pack: Callable[[torch.Tensor], object], weight: torch.Tensor) -> float:
    """CPU time per weight, the median of ROUNDS."""
    times = []
    for _ in range(ROUNDS + 1):  # the first one meets cold memory
        start = time.process_time()
        pack(weight)
        times.append(time.process_time() - start)
    return statistics.median(times[1:]) / weight.numel() * 1e9


def main() -> None:
    torch.set_num_threads(1)
    print(f"instruction set {ops.load().target}")
    weight = torch.randn(SHAPE).bfloat16()
    for name, pack in PACKED.items():
        print(f"{name:9} {nanoseconds(pack, weight):6.2f} ns per weight")


if __name__ == "__main__":
    main()
