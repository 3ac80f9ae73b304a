"""Two engines on the same cores, with OpenMP's threads waiting as they do and passively.

``python -m benchmarks.shared_cores [MODEL] [--rounds 5]``

An operation's threads wait for each other and for the next operation.  By default they spin for
some milliseconds, which is best where a core has nothing else to do; with OMP_WAIT_POLICY=passive
they sleep at once.  Two engines of each kind are alive; in turns, one of them works alone and both
work at once, on a prompt of 1,024 tokens and on one request's decoding.  MODEL is a folder, by
default the demo model's.

Reported: how many times as fast the passive ones are, alone and both at once, by rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks.compare.process import Runner
from benchmarks.turns import OURS, start_runner, summary
from cpu_backend.demo_model.store import default_dir, make_demo_model

PROMPT, STEPS = 1024, 64
POLICIES: dict[str, dict[str, str]] = {"as usual": {}, "passive": {"OMP_WAIT_POLICY": "passive"}}


def start(stack: ExitStack, model: Path, log: Path, environ: dict[str, str]) -> Runner:
    """This project in one process, on every core, whoever else is there."""
    environ = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        **environ,
    }
    runner = start_runner(stack, OURS, "vllm_engine.py", log, environ, wall=True)
    runner.ask(
        {
            "model": str(model),
            "context": 2 * PROMPT,
            "vocab_size": json.loads((model / "config.json").read_text())["vocab_size"],
            "dtype": "bfloat16",
            "engine": {"max_num_batched_tokens": 2 * PROMPT, "enable_prefix_caching": False},
        }
    )
    measure(runner)  # which records the step
    return runner


def measure(runner: Runner) -> dict[str, float]:
    """Tokens per second of a prompt and of one request's decoding."""
    speeds = {}
    for work, sizes in {"prompt": [PROMPT], "decode": [STEPS, STEPS + 1]}.items():
        [speeds[work]] = runner.ask({"kind": work, "sizes": sizes, "repeats": 1})["values"]
    return speeds


Case = tuple[str, int, str]  # policy, how many engines are at work, work


def in_turns(pairs: dict[str, list[Runner]], rounds: int) -> dict[Case, list[float]]:
    """Of each round the mean speed of the engines that are at work."""
    speeds: dict[Case, list[float]] = {}
    with ThreadPoolExecutor(2) as callers:
        for _ in range(rounds):
            for policy, pair in pairs.items():
                for count in (1, 2):
                    found = list(callers.map(measure, pair[:count]))
                    for work in found[0]:
                        mean = statistics.mean(speed[work] for speed in found)
                        speeds.setdefault((policy, count, work), []).append(mean)
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    model = options.model or make_demo_model(default_dir(), None)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pairs = {
            policy: [start(stack, model, folder / f"{policy} {i}.log", environ) for i in range(2)]
            for policy, environ in POLICIES.items()
        }
        speeds = in_turns(pairs, options.rounds)
    for count, name in ((1, "one at work"), (2, "both at work")):
        for work in ("prompt", "decode"):
            usual, passive = (speeds[policy, count, work] for policy in POLICIES)
            ratios = [p / u for p, u in zip(passive, usual, strict=True)]
            print(f"{name:13} {work:7} passive {summary(ratios, '.2f')} times as fast as usual")


if __name__ == "__main__":
    main()
