"""Providers of linear layers and experts in turns, beside the machine's limits of the same run.

    python -m benchmarks.providers [--provider P ...] [--dtype D ...] [--rows N ...] [--write]

Shapes are those of the demo model, Llama-3.2-1B and a 7B, and the experts of Qwen3-30B-A3B, 16 of
its 128 with 8 per token.  Each layer exists several times and they take turns, so that weights come
from memory.  ``--write`` brings docs/providers.md, its picture and the table that
``CPU_BACKEND_LINEAR=auto`` reads up to date.  Run alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.limits import fma_peak, read_bandwidth
from benchmarks.scaling.chart import Panel, svg
from benchmarks.scaling.report import replace_table, table
from cpu_backend import info, ops
from cpu_backend.ops import Activations, Codes, GroupScales
from cpu_backend.providers import Linear, Matrix, Provider, Unsupported
from cpu_backend.providers.choice import KNOWN, load, missing_package
from cpu_backend.providers.measured import TABLE
from cpu_backend.runtime.plan import Machine

DOCS = Path(__file__).parents[1] / "docs"
LINEAR = {  # [out_features, in_features]
    "SmolLM2-135M gate_up": (3072, 576),
    "SmolLM2-135M down": (576, 1536),
    "Llama-3.2-1B gate_up": (16384, 2048),
    "Llama-3.2-1B down": (2048, 8192),
    "7B gate_up": (22016, 4096),
}
EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 16, 8, 2048, 768
ROWS = (1, 16, 256, 1024)
DTYPES = ("bfloat16", "float32", "int8", "int4")
COLD_BYTES = 192 << 20  # read between two uses of one weight: more than the caches hold
ROUNDS = 5
BETTER = 1.03


@dataclass(frozen=True)
class Row:
    """Medians of a shape: seconds per provider, bytes it keeps, and the least that one call takes
    at the machine's limits; 0 where a provider does not have it."""

    kind: str
    shape: str
    dtype: str
    rows: int
    seconds: dict[str, float]
    nbytes: dict[str, int]
    bound: float


def linear(provider: Provider, dtype: str, n: int, k: int) -> Linear:
    """A layer of random weights: int8 with 8-bit activations, int4 in groups of 128."""
    if dtype.startswith("int"):
        bits = int(dtype[3:])
        group = k if bits == 8 else 128 if k % 128 == 0 else 64
        codes = torch.randint(0, 2**bits, (n, k), dtype=torch.uint8)
        scales = torch.full((k // group, n), 0.01)
        kind = "int8_token" if bits == 8 else "int16"
        matrix = Matrix(
            Codes(codes, "bytes", bits), GroupScales(scales, group), k, Activations(kind)
        )
        return provider.quantized(matrix, torch.bfloat16)
    return provider.linear(torch.randn(n, k).to(getattr(torch, dtype)))


def measured(
    runs: Mapping[str, Callable[[int], object]], copies: int
) -> tuple[dict[str, float], float, float]:
    """Median seconds of each, in turns; bytes and fp32 operations per second of the machine."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    reads, peaks = [], []
    for turn in range(ROUNDS + 1):
        for name, run in runs.items():
            until = time.perf_counter() + 0.05
            calls = 0
            start = time.perf_counter()
            while calls < 1 or time.perf_counter() < until:
                run((turn + calls) % copies)
                calls += 1
            if turn:  # the first touches pages and lets libraries choose their kernels
                times[name].append((time.perf_counter() - start) / calls)
        reads.append(read_bandwidth(1))
        peaks.append(fma_peak(1))
    medians = {name: statistics.median(found) for name, found in times.items()}
    return medians, statistics.median(reads), statistics.median(peaks)


def linear_rows(
    providers: list[Provider], dtypes: list[str], sizes: list[int], budget: float
) -> Iterator[Row]:
    for shape, (n, k) in LINEAR.items():
        for dtype in dtypes:
            if time.monotonic() > budget:
                print(f"no time left for {shape} {dtype}")
                return
            bits = {"float32": 32, "bfloat16": 16, "int8": 8, "int4": 4}[dtype]
            nbytes = n * k * bits // 8
            copies = max(1, min(64, COLD_BYTES // nbytes))
            layers: dict[str, list[Linear]] = {}
            for provider in providers:
                try:
                    layers[provider.name] = [linear(provider, dtype, n, k) for _ in range(copies)]
                except Unsupported as error:
                    print(f"{provider.name} {error}")
            for rows in sizes:
                x = torch.randn(rows, k).to(torch.float32 if bits == 32 else torch.bfloat16)
                runs = {name: lambda i, own=own, x=x: own[i](x) for name, own in layers.items()}
                seconds, read, peak = measured(runs, copies)
                bound = max(nbytes / read, 2 * rows * n * k / peak)
                kept = {name: own[0].nbytes for name, own in layers.items()}
                yield Row("linear", f"{shape} {n} x {k}", dtype, rows, seconds, kept, bound)


def expert_rows(providers: list[Provider], dtypes: list[str], sizes: list[int]) -> Iterator[Row]:
    for dtype in (name for name in dtypes if not name.startswith("int")):
        kind = getattr(torch, dtype)
        gate_up = torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN).to(kind)
        down = torch.randn(EXPERTS, HIDDEN, INTERMEDIATE).to(kind)
        made = {}
        for provider in providers:
            try:
                made[provider.name] = provider.experts(gate_up, down, "silu")
            except Unsupported as error:
                print(f"{provider.name} {error}")
        nbytes = gate_up.nbytes + down.nbytes
        for rows in sizes:
            x, out = torch.randn(rows, HIDDEN).to(kind), torch.empty(rows, HIDDEN, dtype=kind)
            weights, ids = torch.rand(rows, EXPERTS).softmax(-1).topk(TOP_K)
            ids = ids.int()
            runs = {
                name: lambda _, one=one, given=(out, x, weights, ids): one(*given)
                for name, one in made.items()
            }
            seconds, read, peak = measured(runs, 1)
            used = nbytes * len(ids.unique()) / EXPERTS
            flops = 2 * rows * TOP_K * 3 * HIDDEN * INTERMEDIATE
            shape = f"Qwen3-30B-A3B experts, {TOP_K} of {EXPERTS}"
            kept = dict.fromkeys(made, nbytes)
            yield Row("experts", shape, dtype, rows, seconds, kept, max(used / read, flops / peak))


def cell(row: Row, name: str) -> str:
    """Times as fast as native, and the share of the bound that was reached."""
    if name not in row.seconds:
        return "—"
    seconds = row.seconds[name]
    share = f"{row.bound / seconds:.0%}"
    return share if name == "native" else f"{row.seconds['native'] / seconds:.2f} ({share})"


def markdown(rows: list[Row], names: list[str]) -> str:
    head = ["", "dtype", "rows", *names]
    return table(
        head,
        ([r.shape, r.dtype, str(r.rows), *(cell(r, name) for name in names)] for r in rows),
    )


def faster(rows: list[Row], target: str) -> list[dict[str, str]]:
    """The table of measured.py: who beat native at every shape and every number of rows."""
    found = []
    for kind, dtype in sorted({(row.kind, row.dtype) for row in rows}):
        same = [row for row in rows if (row.kind, row.dtype) == (kind, dtype)]
        names = set.intersection(*(set(row.seconds) for row in same)) - {"native"}
        least = {
            name: min(row.seconds["native"] / row.seconds[name] for row in same) for name in names
        }
        best = max(least, key=lambda name: least[name], default="")
        if best and least[best] > BETTER:
            found.append({"target": target, "kind": kind, "dtype": dtype, "provider": best})
    return found


def picture(rows: list[Row], caption: str) -> str:
    panels = []
    for shape, dtype in dict.fromkeys((row.shape, row.dtype) for row in rows):
        same = [row for row in rows if (row.shape, row.dtype) == (shape, dtype)]
        if dtype not in ("bfloat16", "int4") or "135M down" in shape or "1B down" in shape:
            continue
        lines = {
            name: [(r.rows, r.seconds["native"] / r.seconds[name]) for r in same]
            for name in same[0].seconds
        }
        panels.append(Panel(f"{shape.partition(',')[0]}, {dtype}", "rows", lines, is_log=False))
    return svg("Times as fast as native", caption, panels)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--provider", action="append", choices=KNOWN)
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--rows", action="append", type=int)
    parser.add_argument("--budget", type=float, default=900.0, help="seconds for linear layers")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    library = ops.load()
    ops.bind_threads(Machine.read().plan(1)[0].cpus)
    asked = options.provider or [name for name in KNOWN if not missing_package(name)]
    providers = [load(name) for name in dict.fromkeys(["native", *asked])]
    names = [provider.name for provider in providers]
    dtypes, sizes = options.dtype or list(DTYPES), options.rows or list(ROWS)
    threads = torch.get_num_threads()
    caption = f"{info.cpu_model()}, {library.target}, {threads} threads, torch {torch.__version__}"
    print(caption)
    rows = []
    for source in (
        expert_rows(providers, dtypes, sizes),
        linear_rows(providers, dtypes, sizes, time.monotonic() + options.budget),
    ):
        for row in source:
            rows.append(row)
            print(
                row.shape, row.dtype, row.rows, *(f"{n} {cell(row, n)}" for n in names), flush=True
            )
    if options.json:
        options.json.write_text(json.dumps([vars(row) for row in rows], indent=1))
    if options.write:
        replace_table(DOCS / "providers.md", "measured", markdown(rows, names))
        (DOCS / "providers.svg").write_text(picture(rows, caption))
        TABLE.write_text(json.dumps(faster(rows, library.target), indent=1) + "\n")


if __name__ == "__main__":
    main()
