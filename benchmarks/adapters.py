"""What LoRA adapters cost: engines whose requests have one, could have one, and cannot, in turns.

``python -m benchmarks.adapters [--model NAME] [--rank 16] [--rounds 3] [--python NAME=PYTHON]
[--wall]``

A model of benchmarks.compare in bf16 with an adapter of every projection, on this project and, with
the adapter, on the vLLM of each interpreter that ``--python`` names.  All engines are alive at
once, each in one process with one thread, and what counts is CPU time, which neighbours disturb
least; ``--wall`` takes every core and the clock instead.

Reported: milliseconds of a prompt and of a decode step of one request and of 16; the share of the
machine's limits that were probed between the turns, of fp32 multiply-adds for the prompt (without
attention; products of bf16 may exceed it) and of read bandwidth for steps (weights, and the adapter
once); how many times as long as in the engine without adapters that is, turn by turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from benchmarks.compare.models import MODELS
from benchmarks.compare.process import Runner
from benchmarks.random_models import Weights, weights_of
from benchmarks.turns import OURS, add_options, start_probe, start_vllm, summary, take_turns
from cpu_backend.demo_model.store import default_dir
from tests.features import adapters

PROMPT = 1024
REQUESTS = (1, 16)
STEPS = 33
CANNOT, COULD, HAS = "without --enable-lora", "beside adapters", "with an adapter"


@dataclass(frozen=True)
class Engine:
    name: str
    runner: Runner


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.adapters",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=MODELS, default="SmolLM2-135M-Instruct")
    parser.add_argument("--rank", type=int, default=16)
    add_options(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        model, config = model_of(options.model, folder)
        adapters.RANK = options.rank
        adapter = adapters.write(folder / "adapter", config, seed=1)

        def start(kind: str, python: Path = OURS) -> Runner:
            runner = start_vllm(stack, python, folder / f"{kind}.log", wall=options.wall)
            engine: dict[str, Any] = {"max_num_seqs": max(REQUESTS)}
            if model != default_dir():
                engine["load_format"] = "dummy"
            if kind != CANNOT:
                engine |= {"enable_lora": True, "max_lora_rank": options.rank}
            settings = {
                "model": str(model),
                "dtype": "bfloat16",
                "context": 2 * PROMPT,
                "vocab_size": config["vocab_size"],
                "cpu_time": not options.wall,
                "engine": engine,
                "adapter": None if kind in (CANNOT, COULD) else str(adapter),
            }
            runner.ask(settings)
            return runner

        engines = [Engine(kind, start(kind)) for kind in (CANNOT, COULD, HAS)]
        engines += [Engine(kind, start(kind, python)) for kind, python in options.python]
        probe = start_probe(stack, folder / "probe.log", wall=options.wall)
        values, limits = take_turns(engines, measure, probe, options.rounds)
        added = sum(t.numel() for t in load_file(adapter / "adapter_model.safetensors").values())
    report(engines, values, limits, weights_of(config), added)


def model_of(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Its checkpoint, without weights where they are random, and its configuration."""
    config = MODELS[name].config
    if config is None:
        model = default_dir()
        written = json.loads((model / "config.json").read_text())
        return model, {
            "head_dim": written["hidden_size"] // written["num_attention_heads"]
        } | written
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config))
    return model, dict(config)


def measure(engine: Engine) -> dict[str, float]:
    """Seconds of a prompt, and of a step by number of requests."""

    def ask(kind: str, *sizes: int) -> float:
        [value] = engine.runner.ask({"kind": kind, "sizes": sizes, "repeats": 1})["values"]
        return float(value)

    steps = {f"step of {n}": ask("step", n, 16, STEPS) for n in REQUESTS}
    return {f"prompt of {PROMPT}": PROMPT / ask("prompt", PROMPT)} | steps


def report(
    engines: list[Engine],
    values: dict[tuple[str, str], list[float]],
    limits: dict[str, float],
    weights: Weights,
    added: int,
) -> None:
    """A line for each work and engine; added: numbers of the adapter."""
    bandwidth, peak = limits["bytes_per_s"], limits["flop_per_s"]
    print(f"{bandwidth / 1e9:.1f} GB/s read, {peak / 1e9:.0f} GFLOP/s in fp32")
    # How often so many numbers are multiplied, or read in two bytes each, and the limit of that.
    works = [(f"prompt of {PROMPT}", PROMPT, weights.multiplied(), peak)]
    works += [(f"step of {n}", 1, weights.read(n), bandwidth) for n in REQUESTS]
    for work, times, numbers, limit in works:
        for engine in engines:
            seconds = values[engine.name, work]
            all_numbers = numbers + (0 if engine.name in (CANNOT, COULD) else added)
            share = 2 * times * all_numbers / limit / statistics.median(seconds)
            pairs = zip(seconds, values[CANNOT, work], strict=True)
            ratios = "" if engine.name == CANNOT else summary([a / b for a, b in pairs], ".2f")
            took = summary([1e3 * value for value in seconds], ".1f")
            print(f"{work:16} {engine.name:24} {took} ms, {share:.0%}  {ratios}", flush=True)


if __name__ == "__main__":
    main()
