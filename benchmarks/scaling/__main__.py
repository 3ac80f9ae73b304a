"""Predictions of docs/scaling.md.

    python -m benchmarks.scaling probe       measure this machine's inputs (two minutes, run alone)
    python -m benchmarks.scaling model       predict from them: cores, NUMA nodes, machines
    python -m benchmarks.scaling replicas    simulate 1 to 1,000 replicas behind the router

``model`` and ``replicas`` write their tables into the document and their pictures beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.scaling import report
from benchmarks.scaling.replicas import POLICIES, Simulation, Traffic, capacity

INPUTS = Path(__file__).with_name("inputs.json")
DOCS = Path(__file__).parents[2] / "docs"
# Load is the share of what the engines could do if they never found a prefix: calm, and about what
# they can do at most when any of them may get a request.
LOADS = (0.9, 2.5)
# Requests per replica: many where there are few replicas, enough to fill caches where there are
# many.  A decision among 1,000 takes the real code milliseconds.
REQUESTS = {1: 1000, 10: 400, 100: 100, 1000: 32}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["probe", "model", "replicas"])
    parser.add_argument("--inputs", type=Path, default=INPUTS, help="what probe measured")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where scaling.md lies")
    options = parser.parse_args()
    if options.what == "probe":
        from benchmarks.scaling.probe import probe

        start = time.perf_counter()
        probe(options.inputs, lambda text: print(f"{time.perf_counter() - start:5.0f} s  {text}"))
        return
    if not options.inputs.exists():
        parser.error(f"{options.inputs} does not exist: write it with the command 'probe'")
    inputs = json.loads(options.inputs.read_text())
    document = options.docs / "scaling.md"
    if options.what == "model":
        write_model(inputs, document)
    else:
        write_replicas(inputs, document)


def write_model(inputs: dict[str, Any], document: Path) -> None:
    tables = {
        "inputs": report.inputs_table(inputs),
        "validation": report.validation_table(inputs),
        "decode 1B": report.grid(inputs, "Llama-3.2-1B", False),
        "decode 8B": report.grid(inputs, "Llama-3.1-8B", False),
        "decode demo": report.grid(inputs, "SmolLM2-135M", False),
        "prompt 8B": report.grid(inputs, "Llama-3.1-8B", True),
        "servers": report.servers_table(inputs),
        "machines": report.machines_table(inputs),
    }
    for name, content in tables.items():
        print(f"\n{name}\n{content}")
        report.replace_table(document, name, content)
    document.with_name("scaling_model.svg").write_text(report.model_picture(inputs))


def write_replicas(inputs: dict[str, Any], document: Path) -> None:
    rows = [row for kind in report.SERVICES for row in simulate(inputs, kind)]
    report.replace_table(document, "service", report.service_table(inputs))
    report.replace_table(document, "replicas", report.replicas_table(rows))
    document.with_name("scaling_replicas.svg").write_text(report.replicas_picture(rows, LOADS[-1]))


def simulate(inputs: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """All replicas for the measured engine, a hundred for the predicted one."""
    service, traffic = report.service(inputs, kind), Traffic()
    alone = capacity(service, traffic)
    rows = []
    for load, (replicas, requests) in itertools.product(LOADS, REQUESTS.items()):
        if kind == "predicted" and replicas != 100:
            continue
        if replicas == 1000 and load != LOADS[-1]:
            continue
        seconds = requests / (load * alone)
        for policy in POLICIES:
            start = time.perf_counter()
            rate = load * replicas * alone
            result = Simulation(policy, replicas, rate, seconds, service, traffic).run()
            key = {"engine": kind, "load": load, "replicas": replicas, "policy": policy}
            rows.append({**key, **asdict(result)})
            print(f"{time.perf_counter() - start:5.1f} s  {rows[-1]}", flush=True)
    return rows


if __name__ == "__main__":
    main()
