"""Engines of text models for comparisons in turns: vLLM with this project or without, and llama.cpp
with a GGUF file of the same checkpoint; and whether both give the same greedy tokens.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare.environments import Environments, SetupError, run_step
from benchmarks.compare.process import Runner, RunnerError
from benchmarks.turns import (
    OURS,
    add_options,
    named_python,
    start_runner,
    start_vllm,
    threads,
    torchvision_folder,
)
from tools import llama_cpp

CHECKED_PROMPTS = (5, 100, 700)  # the last is more than llama.cpp takes at once
CHECKED_TOKENS = 32

Start = Callable[[Path], Runner]  # by the file of its log


@dataclass(frozen=True)
class Place:
    """The checkpoint of every engine, and what all have room for.

    context: tokens of a request; requests: at once; step: tokens of one; wall: every core and the
    clock, else one thread and its CPU time.
    """

    checkpoint: Path
    context: int
    requests: int
    step: int
    wall: bool

    def settings(self, model: Path) -> dict[str, Any]:
        """Of every runner; model: the file that it reads."""
        config = json.loads((self.checkpoint / "config.json").read_text())
        return {
            "model": str(model),
            "context": self.context,
            "vocab_size": config["vocab_size"],
            "cpu_time": not self.wall,
        }


def start_host(
    stack: ExitStack, python: Path, place: Place, log: Path, dtype: str = "bfloat16", **engine: Any
) -> Runner:
    """vLLM with this project or without; RunnerError with its sentence where it does not start.

    engine: more options of its constructor.  Another interpreter finds this one's torchvision.
    """
    packages = None if python == OURS else torchvision_folder()
    runner = start_vllm(stack, python, log, wall=place.wall, packages=packages)
    options = {
        "max_num_seqs": place.requests,
        "max_num_batched_tokens": place.step,
        "enforce_eager": python != OURS,
        **engine,
    }
    runner.ask(place.settings(place.checkpoint) | {"dtype": dtype, "engine": options})
    return runner


def start_llama_cpp(
    stack: ExitStack, python: Path, place: Place, weights: str, log: Path, **settings: Any
) -> Runner:
    """llama.cpp with a GGUF file made from the checkpoint; SetupError where it cannot be made.

    settings: "sequences", for how many it always has room, as ``--parallel`` of its server;
    "exact", for attention in fp32 throughout.
    """
    file = place.checkpoint.with_suffix(f".{weights}.gguf")
    run_step(llama_cpp.command(place.checkpoint, file, weights), log)
    runner = start_runner(stack, python, "llama_cpp_engine.py", log, {}, wall=place.wall)
    runner.ask(place.settings(file) | {"threads": threads(wall=place.wall)} | settings)
    return runner


def llama_cpp_python(options: argparse.Namespace) -> Path:
    """Made where it is missing; SetupError where it cannot be."""
    return Environments(options.cache.expanduser(), dict(options.python), print).python("llama-cpp")


def other_engines(
    stack: ExitStack, place: Place, options: argparse.Namespace, **settings: Any
) -> dict[str, Start]:
    """Those that ``--beside`` and ``--llama-cpp`` name; settings: as of ``start_llama_cpp``."""

    def llama(kind: str, log: Path) -> Runner:
        return start_llama_cpp(stack, llama_cpp_python(options), place, kind, log, **settings)

    starts: dict[str, Start] = {}
    for name, python in options.beside:
        starts[name] = functools.partial(start_host, stack, python, place)
    for kind in options.llama_cpp:
        starts[f"llama.cpp {kind}"] = functools.partial(llama, kind)
    return starts


def start_all(starts: dict[str, Start], folder: Path, about: str = "") -> dict[str, Runner]:
    """Those that start, with their logs in the folder; of the others a line says why not."""
    runners = {}
    for name, start in starts.items():
        try:
            runners[name] = start(folder / f"{name}.log")
        except (RunnerError, SetupError) as error:
            print(f"{about}{name}: {error}", flush=True)
    return runners


def gives_same_tokens(name: str, options: argparse.Namespace, place: Place) -> bool:
    """Whether all greedy tokens of llama.cpp are those here, in fp32, one engine after the other;
    prints a line."""
    vocabulary = json.loads((place.checkpoint / "config.json").read_text())["vocab_size"]
    prompts = [random.choices(range(vocabulary), k=tokens) for tokens in CHECKED_PROMPTS]
    log = place.checkpoint.with_suffix(".log")

    def answers(start: Callable[[ExitStack], Runner]) -> list[int]:
        with ExitStack() as stack:
            runner = start(stack)
            asked = [{"kind": "greedy", "tokens": p, "outputs": CHECKED_TOKENS} for p in prompts]
            return [token for request in asked for token in runner.ask(request)["tokens"]]

    try:
        here = answers(lambda stack: start_host(stack, OURS, place, log, "float32"))
        python = llama_cpp_python(options)
        there = answers(lambda stack: start_llama_cpp(stack, python, place, "F32", log, exact=True))
    except (RunnerError, SetupError) as error:
        print(f"{name}: {error}", flush=True)
        return False
    same = sum(a == b for a, b in zip(here, there, strict=True))
    total, different = len(here), len(set(here))
    print(
        f"{name}: llama.cpp gives {same} of {total} tokens as here, {different} different ones",
        flush=True,
    )
    return same == total


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Which engines there are beside this project, and those of every comparison."""
    parser.add_argument(
        "--beside", action="append", default=[], type=named_python, metavar="NAME=PYTHON"
    )
    parser.add_argument(
        "--llama-cpp", action="extend", nargs="+", default=[], choices=("BF16", "F16", "F32")
    )
    parser.add_argument("--check", action="store_true", help="compare tokens with llama.cpp")
    add_options(parser)
