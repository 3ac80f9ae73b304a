"""Engines that are alive at once and measured in turns: how they are started, and their figures."""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from benchmarks.compare.peers import RUNNERS
from benchmarks.compare.process import Runner, RunnerError, clean_environ

OURS = Path(sys.executable)
TIMEOUT_S = 1800  # four prompts of 8,192 tokens on one thread of a busy machine


def threads(*, wall: bool) -> int:
    """Of every engine: all where the clock counts, one where its CPU time does."""
    return torch.get_num_threads() if wall else 1


def start_runner(
    stack: ExitStack, python: Path, script: str, log: Path, environ: dict[str, str], *, wall: bool
) -> Runner:
    """A runner in one process, which ends with the stack."""
    if not wall:
        environ = {"OMP_NUM_THREADS": "1", **environ}
    keep = ("PYTHONPATH",) if python == OURS else ()
    return stack.enter_context(
        Runner(python, RUNNERS / script, clean_environ(environ, keep=keep), log, TIMEOUT_S)
    )


def start_vllm(
    stack: ExitStack,
    python: Path,
    log: Path,
    *,
    wall: bool,
    packages: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Runner:
    """This project, or vLLM's own CPU build where ``python`` is another interpreter.

    packages: a folder of more than its environment has; environ: variables of its own.
    """
    environ = {
        **(environ or {}),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    if python != OURS:
        environ["VLLM_PLUGINS"] = ""
    if packages is not None:
        environ["PYTHONPATH"] = str(packages)
    return start_runner(stack, python, "vllm_engine.py", log, environ, wall=wall)


def torchvision_folder() -> Path | None:
    """Where torchvision is, which some models' classes import; None where it is not apart from this
    environment's packages, which another interpreter must not find (docs/testing.md)."""
    found = importlib.util.find_spec("torchvision")
    folder = Path(found.origin).parents[1] if found and found.origin else None
    return None if folder is None or (folder / "torch").exists() else folder


def start_probe(stack: ExitStack, log: Path, *, wall: bool) -> Runner:
    """Answers what the machine gives at the moment."""
    probe = start_runner(stack, OURS, "machine_limits.py", log, {}, wall=wall)
    probe.ask({"threads": threads(wall=wall), "cpu_time": not wall})
    return probe


class Named(Protocol):
    """An engine by its name."""

    @property
    def name(self) -> str: ...


Engine = TypeVar("Engine", bound=Named)


def take_turns(
    engines: list[Engine],
    measure: Callable[[Engine], dict[str, float]],
    probe: Runner,
    rounds: int,
    about: str = "",
) -> tuple[dict[tuple[str, str], list[float]], dict[str, float]]:
    """Figures of each round by (engine, work), and the most that the probe found of each limit.

    One more round goes before, in which steps are recorded.  An engine that fails, as another build
    may that does not compute the model, is taken off the list, and a line says so.
    """
    values: dict[tuple[str, str], list[float]] = {}
    limits: dict[str, float] = {}
    for turn in range(-1, rounds):
        for engine in list(engines):
            try:
                found = measure(engine)
            except RunnerError as error:
                print(f"{about}{engine.name}: {error}", flush=True)
                engines.remove(engine)
                continue
            if turn >= 0:
                for work, value in found.items():
                    values.setdefault((engine.name, work), []).append(value)
            probed = probe.ask({})
            limits = {name: max(limits.get(name, 0.0), value) for name, value in probed.items()}
    return values, limits


def summary(values: list[float], form: str) -> str:
    """Median and range."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def times_as_fast(here: list[float], there: list[float], *, more_is_better: bool) -> str:
    """How many times as fast this project is, turn by turn."""
    pairs = zip(here, there, strict=True)
    ratios = [ours / theirs if more_is_better else theirs / ours for ours, theirs in pairs]
    return f"{summary(ratios, '.2f')} times as fast"


def add_options(parser: argparse.ArgumentParser) -> None:
    """How often, on what, and with which environments of other engines."""
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wall", action="store_true", help="all cores and the clock")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/cpu_backend/peers"))
    parser.add_argument(
        "--python", action="append", default=[], type=named_python, metavar="ENVIRONMENT=PYTHON"
    )


def named_python(text: str) -> tuple[str, Path]:
    """For argparse: "NAME=PYTHON"."""
    name, _, path = text.partition("=")
    if not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"'{text}': write NAME=PYTHON, an interpreter")
    return name, Path(path)
