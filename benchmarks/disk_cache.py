"""What prompts on disk give and cost: an engine with ``CPU_BACKEND_DISK_CACHE`` and one without.

``python -m benchmarks.disk_cache [--model NAME] [--rounds 5] [--folder FOLDER]``

A model of benchmarks.compare in bf16, both engines alive at once and in turns, on all cores and by
the clock.  Reported: seconds until the first token of a prompt that is computed, and of one that
memory has lost and the disk has, the bytes of its pages over that time and their share of the read
bandwidth that was probed between the turns (files written a moment ago mostly lie in the system's
memory still); tokens per second of many short requests, whose pages are written meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.adapters import Engine, model_of
from benchmarks.compare.models import MODELS
from benchmarks.turns import OURS, start_probe, start_vllm, summary, take_turns
from cpu_backend import envs
from cpu_backend.demo_model.store import default_dir

PROMPTS = (1024, 4096)
BATCH = (16, 256, 16)  # requests, tokens in, tokens out
WITHOUT, WITH = "without", "with a disk"
COMPUTED, FOUND = "computed", "from the disk"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.disk_cache",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=MODELS, default="SmolLM2-135M-Instruct")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, help="on the disk to measure; the system's for TMPDIR"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name, ExitStack() as stack:
        folder = Path(name)
        model, config = model_of(options.model, folder)
        settings = {
            "model": str(model),
            "dtype": "bfloat16",
            "context": 2 * max(PROMPTS),
            "vocab_size": config["vocab_size"],
            "engine": {} if model == default_dir() else {"load_format": "dummy"},
        }
        engines = []
        for kind, pages in ((WITHOUT, ""), (WITH, str(folder / "pages"))):
            environ = {envs.DISK_CACHE.name: pages}
            runner = start_vllm(stack, OURS, folder / f"{kind}.log", wall=True, environ=environ)
            runner.ask(settings)
            engines.append(Engine(kind, runner))
        probe = start_probe(stack, folder / "probe.log", wall=True)
        values, limits = take_turns(engines, measure, probe, options.rounds)
    token = 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    report(values, limits["bytes_per_s"], token)


def measure(engine: Engine) -> dict[str, float]:
    """Seconds until the first token by prompt, and tokens per second of many requests."""

    def ask(kind: str, *sizes: int) -> float:
        [value] = engine.runner.ask({"kind": kind, "sizes": sizes, "repeats": 1})["values"]
        return float(value)

    found = {f"{COMPUTED} {n}": n / ask("prompt", n) for n in PROMPTS}
    if engine.name == WITH:
        found |= {f"{FOUND} {n}": ask("first_after_forgetting", n) for n in PROMPTS}
    return found | {"batch": ask("batch", *BATCH)}


def report(values: dict[tuple[str, str], list[float]], bandwidth: float, token: int) -> None:
    """Ratios turn by turn; token: bytes of one in the cache."""
    print(f"{bandwidth / 1e9:.1f} GB/s read; {token / 2**10:.1f} KiB for a token")

    def ratios(a: tuple[str, str], b: tuple[str, str]) -> str:
        return summary([x / y for x, y in zip(values[a], values[b], strict=True)], ".2f")

    for n in PROMPTS:
        computed, found = (WITHOUT, f"{COMPUTED} {n}"), (WITH, f"{FOUND} {n}")
        storing = (WITH, f"{COMPUTED} {n}")
        rate = n * token / statistics.median(values[found])
        print(f"{n} tokens computed: {summary(values[computed], '.3f')} s")
        print(f"  and stored: {ratios(storing, computed)} times as long")
        print(
            f"  from the disk: {summary(values[found], '.3f')} s, {ratios(computed, found)} times"
        )
        print(f"  as fast, {rate / 1e9:.2f} GB/s, {rate / bandwidth:.0%} of the bandwidth")
    requests, inputs, outputs = BATCH
    speed = ratios((WITH, "batch"), (WITHOUT, "batch"))
    print(f"{requests} requests, {inputs} in, {outputs} out: {speed} times as fast with a disk")


if __name__ == "__main__":
    main()
