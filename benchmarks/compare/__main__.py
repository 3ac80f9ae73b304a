"""Sets up the peers, measures them in turns, and writes the figures.

    python -m benchmarks.compare [--model M] [--dtype D ...] [--only PEER ...] [--work W ...]

Writes to the output folder: runs.jsonl (a record per process), results.json (the figures),
results.md (the tables) and one picture per model. Run it again to go on where it stopped, or with
more rounds, works or peers to add them.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.compare.chart import svg
from benchmarks.compare.environments import ROOT, Environments, SetupError
from benchmarks.compare.machine import Machine, read_machine
from benchmarks.compare.measure import Measurement, Store, turns
from benchmarks.compare.models import MODELS, ModelFiles
from benchmarks.compare.peers import CONTEXT, OURS, PEERS, Peer
from benchmarks.compare.process import RunnerError
from benchmarks.compare.report import machine_line, markdown
from benchmarks.compare.summary import Summary, summarize
from benchmarks.compare.work import WEIGHT_BYTES, Work

DEFAULT_WORKS = ("decode:32:256", "prompt:1024", "batch:64:128:128", "http:32:128:64")
# Bounds one work and one start. The slowest known start, vLLM compiling, takes over five minutes.
TIMEOUT_S = 900
# A tenth of a core beside the peer: about what a desktop or a monitoring agent uses.
QUIET_CORES = 0.1
SETUP_FAILURES = "setup_failures.json"


class UsageError(Exception):
    """One sentence: what is wrong with the options."""


def main() -> int:
    options = parse_arguments()
    # A terminated comparison must end its peers like an interrupted one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(options)
    except KeyboardInterrupt:
        say("stopped: run the same command again to go on")
        return 130
    except (SetupError, RunnerError, UsageError) as error:
        say(f"error: {error}")
        return 1


def run(options: argparse.Namespace) -> int:
    out: Path = options.out
    (out / "logs").mkdir(parents=True, exist_ok=True)
    machine = same_machine(out / "machine.json", read_machine())
    store = Store.open(out / "runs.jsonl")
    if options.report_only:
        write_results(out, store)
        return 0
    environments = Environments(
        options.cache.expanduser(), dict(map(parse_python, options.python)), say
    )
    files = ModelFiles(MODELS[options.model], environments.cache, environments.python, say)
    usable = set_up(options, machine, files, environments.python)
    if options.setup_only:
        return 0
    measurement = Measurement(
        machine=machine,
        files=files,
        store=store,
        python=environments.python,
        commit=commit(),
        logs=out / "logs",
        timeout_s=options.timeout,
        quiet_cores=options.quiet,
        say=say,
        deadline=time.monotonic() + options.budget,
    )
    done = store.done(options.model, quiet_cores=options.quiet, retry_failed=options.retry_failed)
    finished = measurement.run(turns(options.rounds, usable, options.work, done))
    write_results(out, store)
    if not finished:
        say("the time was up: run the same command again to go on")
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description="Compare this project with its peers on the same work.",
    )
    parser.add_argument("--model", choices=MODELS, default=next(iter(MODELS)))
    parser.add_argument("--dtype", nargs="+", choices=WEIGHT_BYTES, default=["bfloat16", "float32"])
    parser.add_argument("--only", nargs="+", choices=PEERS, metavar="PEER", help=", ".join(PEERS))
    parser.add_argument(
        "--work",
        nargs="+",
        type=work_argument,
        default=[Work.parse(text) for text in DEFAULT_WORKS],
        help=f"default: {' '.join(DEFAULT_WORKS)}",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds in all, earlier ones included"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="begin no work after so long; the same command goes on later",
    )
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS", help="for one work or start"
    )
    parser.add_argument(
        "--quiet",
        type=float,
        default=QUIET_CORES,
        metavar="CORES",
        help=f"measure again what ran while others used more than so many (default {QUIET_CORES})",
    )
    parser.add_argument("--retry-failed", action="store_true", help="try again what failed before")
    parser.add_argument("--setup-only", action="store_true", help="make what is missing, then stop")
    parser.add_argument("--report-only", action="store_true", help="only write the figures anew")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="ENVIRONMENT=PATH",
        help="use this interpreter as it is, instead of making that environment",
    )
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/cpu_backend/peers"))
    parser.add_argument("--out", type=Path, default=ROOT / "build/compare")
    return parser.parse_args()


def work_argument(text: str) -> Work:
    try:
        work = Work.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if work.context > CONTEXT:
        raise argparse.ArgumentTypeError(f"'{text}' is longer than {CONTEXT} tokens")
    return work


def parse_python(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    environments = {peer.environment for peer in PEERS.values()}
    if not equals or name not in environments:
        raise UsageError(f"--python {text}: write one of {', '.join(sorted(environments))}=PATH")
    # Not resolved: the link is what makes an interpreter one of its environment.
    if not Path(path).is_file():
        raise UsageError(f"--python {text}: there is no such file")
    return name, Path(path).absolute()


def same_machine(path: Path, machine: Machine) -> Machine:
    """The machine, if the folder holds no figures of another: together they would mean nothing."""
    record = json.loads(json.dumps(vars(machine)))
    if path.is_file() and (known := json.loads(path.read_text())) != record:
        different = [key for key in record if record[key] != known.get(key)]
        raise UsageError(
            f"the figures in {path.parent} are of another machine ({', '.join(different)} differ): "
            "choose another folder with --out"
        )
    path.write_text(json.dumps(record))
    return machine


def set_up(
    options: argparse.Namespace,
    machine: Machine,
    files: ModelFiles,
    python: Callable[[str], Path],
) -> list[tuple[Peer, str]]:
    """(peer, dtype) of all that can be measured; why the others cannot goes to SETUP_FAILURES."""
    names = options.only or [name for name, peer in PEERS.items() if peer.by_default]
    python(OURS)  # the probe and the HTTP client: without it nothing can be measured
    files.checkpoint()
    usable = []
    path = options.out / SETUP_FAILURES
    failures = json.loads(path.read_text()) if path.is_file() else {}
    for dtype in options.dtype:
        for name in names:
            peer = PEERS[name]
            reason = peer.lacks(dtype, machine)
            if reason is None:
                try:
                    python(peer.environment)
                    peer.model(files, peer.weights[dtype])
                except SetupError as error:
                    reason = str(error)
            if reason is None:
                usable.append((peer, dtype))
                failures.pop(f"{name} {dtype}", None)
            else:
                failures[f"{name} {dtype}"] = reason
                say(f"{name} {dtype}: {reason}")
    path.write_text(json.dumps(failures, indent=1))
    return usable


def write_results(out: Path, store: Store) -> None:
    machine = json.loads((out / "machine.json").read_text())
    path = out / SETUP_FAILURES
    failures = json.loads(path.read_text()) if path.is_file() else {}
    summaries = []
    for name in dict.fromkeys(record["model"] for record in store.records):
        summary = summarize(name, store.records)
        summaries.append(summary)
        (out / f"{name}.svg").write_text(svg(summary, machine_line(machine)))
    (out / "results.md").write_text(markdown(summaries, machine, failures))
    record = {"machine": machine, "models": [as_json(summary) for summary in summaries]}
    (out / "results.json").write_text(json.dumps({**record, "not_set_up": failures}, indent=1))
    say(f"wrote {out}/results.md, results.json and a picture of each model")


def as_json(summary: Summary) -> dict[str, Any]:
    titles = {metric.key: metric for metric in summary.metrics}
    cells = [
        {
            "metric": key,
            "title": titles[key].title,
            "more_is_better": titles[key].sign > 0,
            "dtype": dtype,
            "peer": peer,
            "median": cell.median,
            "rounds": cell.values,
            "share_of_bound": cell.share,
            "other_cores": cell.other_cores,
        }
        for (key, dtype, peer), cell in summary.cells.items()
    ]
    failures = [
        {"peer": peer, "dtype": dtype, "what": what, "reason": reason}
        for (peer, dtype, what), reason in summary.failures.items()
    ]
    return {
        "model": summary.model,
        "commits": summary.commits,
        "probes": [vars(probe) for probe in summary.probes],
        "figures": cells,
        "failures": failures,
        "versions": summary.versions,
    }


def commit() -> str:
    """The state of this project that is measured."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
