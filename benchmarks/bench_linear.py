"""Linear layers of real shapes: GB/s and GFLOP/s beside the machine's limits of the same run.

    python benchmarks/bench_linear.py [--dtype bfloat16] [--json FILE]

Weights rotate through more memory than the caches hold; each result is checked against torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from limits import fma_peak, read_bandwidth

from cpu_backend import ops

# (out_features, in_features): the largest linear of each model.
SHAPES = {
    "SmolLM2-135M gate_up": (3072, 576),
    "Llama-3.2-1B gate_up": (16384, 2048),
    "Qwen3-4B gate_up": (19456, 2560),
    "Llama-3.1-8B qkv": (6144, 4096),
}
TOKENS = (1, 2, 4, 8, 16, 32, 64, 256, 1024)
ROTATED_BYTES = 256 << 20


def measure(name: str, dtype: torch.dtype, tokens: int) -> dict[str, float | str | int]:
    """Median seconds of one product, as rates."""
    out_features, in_features = SHAPES[name]
    weight_bytes = out_features * in_features * dtype.itemsize
    copies = max(1, min(16, ROTATED_BYTES // weight_bytes))
    weight = torch.randn(out_features, in_features).to(dtype)
    packed = [ops.PackedLinear(weight) for _ in range(copies)]
    x = torch.randn(tokens, in_features).to(dtype)
    expected = x.float() @ weight.float().t()
    result = packed[0](x).float()
    error = float((result - expected).norm() / expected.norm())
    assert error < 1e-2, f"{name}: relative error {error}"
    times = []
    for i in range(3 * copies if tokens < 64 else 3):
        start = time.perf_counter()
        packed[i % copies](x)
        times.append(time.perf_counter() - start)
    seconds = statistics.median(times)
    return {
        "shape": name,
        "dtype": str(dtype).removeprefix("torch."),
        "tokens": tokens,
        "bytes_per_s": weight_bytes / seconds,
        "flop_per_s": 2 * tokens * out_features * in_features / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", action="append", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--json", help="write the rows here as well")
    options = parser.parse_args()
    library = ops.load()
    print(f"instruction set {library.target}, {torch.get_num_threads()} threads")
    rows = []
    for dtype_name in options.dtype or ["float32", "bfloat16", "float16"]:
        for shape in SHAPES:
            for tokens in TOKENS:
                bandwidth, peak = read_bandwidth(), fma_peak()
                row = measure(shape, getattr(torch, dtype_name), tokens)
                share = max(float(row["bytes_per_s"]) / bandwidth, float(row["flop_per_s"]) / peak)
                rows.append({**row, "bandwidth": bandwidth, "peak": peak, "share": share})
                print(
                    f"{shape:<24} {dtype_name:<9} M={tokens:<5}"
                    f"{float(row['bytes_per_s']) / 1e9:7.1f} of {bandwidth / 1e9:5.1f} GB/s"
                    f"{float(row['flop_per_s']) / 1e9:8.1f} of {peak / 1e9:6.1f} GFLOP/s"
                    f"  {share:5.0%} of the limit"
                )
    if options.json:
        with open(options.json, "w") as out:
            json.dump(rows, out, indent=1)


if __name__ == "__main__":
    main()
