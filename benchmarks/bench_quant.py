"""Linear layers with quantized weights beside bf16 and the machine's limits of the same run.

    python benchmarks/bench_quant.py [--json FILE]

Weights rotate through more memory than the caches hold; each result is checked against the product
of the dequantized weight.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from limits import fma_peak, int8_peak, read_bandwidth

from cpu_backend import ops

# (out_features, in_features)
SHAPES = {"1B gate_up": (16384, 2048), "8B o": (4096, 4096), "8B gate_up": (28672, 4096)}
TOKENS = (1, 4, 16, 128, 512)
ROTATED_BYTES = 256 << 20


@dataclass(frozen=True)
class Scheme:
    bits: int
    group: int  # 0: all of in_features
    activations: str
    levels: bool = False  # two levels of scales, as cpu_int4 has them
    table: bool = False  # codes stand for 8-bit ones: MXFP4, NVFP4, NF4, GGUF's IQ types


SCHEMES = {
    "bf16": None,
    "fp8 channel": Scheme(8, 0, "float"),
    "fp8 block 128": Scheme(8, 128, "float"),
    "W8A8 token": Scheme(8, 0, "int8_token"),
    "W8A16 group 128": Scheme(8, 128, "int16"),
    "W2A16 group 16": Scheme(2, 16, "int16"),
    "W2A16 group 128": Scheme(2, 128, "int16"),
    "W3A16 group 16": Scheme(3, 16, "int16"),
    "W3A16 group 128": Scheme(3, 128, "int16"),
    "W3A16 table 32": Scheme(3, 32, "int16", table=True),
    "W4A16 group 128": Scheme(4, 128, "int16"),
    "W4A16 group 32": Scheme(4, 32, "int16"),
    "W4A16 levels": Scheme(4, 128, "int16", levels=True),
    "W4A16 table 16": Scheme(4, 16, "int16", table=True),
    "W4A16 table 32": Scheme(4, 32, "int16", table=True),
    "W4A8 group 128": Scheme(4, 128, "int8"),
    "W4A8 group 32": Scheme(4, 32, "int8"),
    "W4A8 levels": Scheme(4, 128, "int8", levels=True),
}


def make(
    scheme: Scheme | None, out_features: int, in_features: int
) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor, int]:
    """A layer, its dequantized weight and its bytes."""
    if scheme is None:
        weight = torch.randn(out_features, in_features).bfloat16()
        return ops.PackedLinear(weight), weight, weight.nbytes
    group = scheme.group or in_features
    middle = 2 ** (scheme.bits - 1)
    codes = torch.randint(0, 2 * middle, (out_features, in_features), dtype=torch.uint8)
    scales = (torch.rand(in_features // group, out_features) + 0.5).bfloat16() / middle
    values, groups = codes.float() - middle, ops.GroupScales(scales, group)
    if scheme.activations == "float":
        codes = values.to(torch.float8_e4m3fn)
        values = codes.float()
    if scheme.levels:
        step, base = 10, 50
        levels = torch.full((in_features // 32, out_features), step + 256 * base).to(torch.uint16)
        values = codes.float() * step + base - 128
        groups = ops.GroupScales(scales, group, levels, "levels")
    table = torch.arange(16).pow(2).to(torch.uint8) if scheme.table else None
    if table is not None:
        values = table[codes.int()].float() - 128
    layer = ops.QuantizedLinear(
        ops.Codes(codes, "bytes", scheme.bits, table=table),
        groups,
        in_features,
        ops.Activations(scheme.activations),
    )
    spread = scales.float().repeat_interleave(group, 0).t()
    return layer, (values * spread).bfloat16(), layer.nbytes


def measure(name: str, shape: str) -> list[dict[str, float | str | int]]:
    """Median seconds of one product for each number of tokens, as rates."""
    out_features, in_features = SHAPES[shape]
    first, weight, weight_bytes = make(SCHEMES[name], out_features, in_features)
    copies = max(1, min(16, ROTATED_BYTES // weight_bytes))
    layers = [first] + [
        make(SCHEMES[name], out_features, in_features)[0] for _ in range(copies - 1)
    ]
    rows: list[dict[str, float | str | int]] = []
    for tokens in TOKENS:
        x = torch.randn(tokens, in_features).bfloat16()
        expected = x.float() @ weight.float().t()
        error = float((first(x).float() - expected).norm() / expected.norm())
        assert error < 2e-2, f"{name}: relative error {error}"
        times = []
        for i in range(3 * copies if tokens < 64 else 4):
            start = time.perf_counter()
            layers[i % copies](x)
            times.append(time.perf_counter() - start)
        seconds = statistics.median(times)
        rows.append(
            {
                "scheme": name,
                "shape": shape,
                "tokens": tokens,
                "seconds": seconds,
                "bytes_per_s": weight_bytes / seconds,
                "op_per_s": 2 * tokens * out_features * in_features / seconds,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", help="write the rows here as well")
    parser.add_argument("--shape", action="append", choices=list(SHAPES))
    parser.add_argument("--scheme", action="append", choices=list(SCHEMES))
    options = parser.parse_args()
    library = ops.load()
    print(f"instruction set {library.target}, {torch.get_num_threads()} threads")
    rows = []
    for shape in options.shape or SHAPES:
        bf16: dict[int, float] = {}
        for scheme in options.scheme or SCHEMES:
            bandwidth, peak, fma = read_bandwidth(), int8_peak(), fma_peak()
            print(
                f"{shape}, {scheme}: limits {bandwidth / 1e9:.1f} GB/s, "
                f"{peak / 1e9:.0f} int8 GOP/s, {fma / 1e9:.0f} fp32 GFLOP/s"
            )
            for row in measure(scheme, shape):
                tokens, seconds = int(row["tokens"]), float(row["seconds"])
                if scheme == "bf16":
                    bf16[tokens] = seconds
                rows.append({**row, "bandwidth": bandwidth, "int8_peak": peak, "fma_peak": fma})
                print(
                    f"  M={tokens:<4} {float(row['bytes_per_s']) / 1e9:6.1f} GB/s"
                    f" {float(row['bytes_per_s']) / bandwidth:5.0%}"
                    f" {float(row['op_per_s']) / 1e9:7.1f} GOP/s"
                    f" {float(row['op_per_s']) / peak:5.0%}"
                    f"  {bf16.get(tokens, float('nan')) / seconds:5.2f} times bf16"
                )
    if options.json:
        with open(options.json, "w") as out:
            json.dump(rows, out, indent=1)


if __name__ == "__main__":
    main()
