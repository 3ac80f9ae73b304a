"""The tables and pictures of docs/scaling.md, each between two marks of that file."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.scaling.chart import Panel, svg
from benchmarks.scaling.model import (
    BYTES,
    MODELS,
    SUMS_PER_LAYER,
    Costs,
    Node,
    Prediction,
    bf16_gain,
    decode,
    prompt,
)
from benchmarks.scaling.replicas import Service
from benchmarks.scaling.servers import REFERENCE, SERVERS, Server

CORES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NODES = (1, 2, 4, 8)
# Linear layers as small as the demo model's reach less of the limits than larger ones.
FAMILY = {"SmolLM2-135M": "SmolLM2-135M"}
LARGE_FAMILY = "Llama-3.2-1B"
MACHINES = (1, 2, 4, 8)
# Assumed of a network between machines: 25 Gbit/s, and 50 microseconds for a turn of a ring.
NETWORK_BYTES_PER_S = 25e9 / 8
NETWORK_TURN_S = 50e-6


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def figure(value: float, digits: int = 3) -> str:
    """With so many significant digits: 1234.5 is 1,230 and 0.01234 is 0.0123."""
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):,.{max(0, places)}f}"


def replace_table(document: Path, name: str, content: str) -> None:
    """What stands between ``<!-- name -->`` and ``<!-- end -->`` becomes ``content``."""
    old = document.read_text()
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
    new, count = pattern.subn(lambda found: found[1] + content + found[2], old)
    if count != 1:
        raise SystemExit(f"{document} has {count} places for '{name}' and needs one.")
    document.write_text(new)


def costs_of(inputs: dict[str, Any], model: str) -> Costs:
    return Costs.of(inputs, FAMILY.get(model, LARGE_FAMILY))


def here(inputs: dict[str, Any]) -> Node:
    """The machine that was measured."""
    one, most = inputs["kernels"]["1"], inputs["kernels"][str(inputs["cores"])]
    return Node(
        inputs["cores"],
        most["read_bytes_per_s"],
        one["read_bytes_per_s"],
        most["flop_per_s"] / inputs["cores"] * bf16_gain(inputs),
    )


def core_reads(inputs: dict[str, Any]) -> float:
    """Bytes per second that one core draws when it has the memory for itself."""
    rate: float = inputs["kernels"]["1"]["read_bytes_per_s"]
    return rate


# ---- measured beside predicted -------------------------------------------------------------------


def validation(inputs: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    """(layout, what, predicted, measured) tokens/s of the demo model."""
    node, model = here(inputs), MODELS["SmolLM2-135M"]
    costs = costs_of(inputs, "SmolLM2-135M")
    cores = inputs["cores"]
    rows = []
    for layout, each, ranks in (
        ("1 cores", 1, 1),
        (f"{cores} cores", cores, 1),
        ("tp 2", cores // 2, 2),
    ):
        found = inputs["demo"][layout]
        # Ranks of one node share its memory.
        share = Node(
            each,
            node.bytes_per_s / ranks,
            node.core_bytes_per_s,
            node.core_flop_per_s,
        )
        step = decode(share, costs, model, each, ranks, context=80)
        whole = prompt(share, costs, model, each, ranks, tokens=found["prompt_tokens"])
        rows.append((layout, "decode", 1 / step.seconds, found["decode_tokens_per_s"]))
        speed = found["prompt_tokens"] / whole.seconds
        rows.append((layout, "prompt", speed, found["prompt_tokens_per_s"]))
    return rows


def validation_table(inputs: dict[str, Any]) -> str:
    names = {"1 cores": "one rank, 1 core", "tp 2": "`-tp 2`, 1 core each"}
    rows = [
        (
            names.get(layout, f"one rank, {layout}"),
            what,
            figure(predicted),
            figure(measured),
            f"{predicted / measured - 1:+.0%}",
        )
        for layout, what, predicted, measured in validation(inputs)
    ]
    return table(("layout", "work", "predicted tokens/s", "measured tokens/s", "error"), rows)


def inputs_table(inputs: dict[str, Any]) -> str:
    one, most = inputs["kernels"]["1"], inputs["kernels"][str(inputs["cores"])]
    costs = costs_of(inputs, LARGE_FAMILY)
    small = costs_of(inputs, "SmolLM2-135M")
    micro, milli = 1e6, 1e3
    rows = [
        ("reads, one core alone", f"{one['read_bytes_per_s'] / 1e9:.1f} GB/s"),
        ("reads, all cores", f"{most['read_bytes_per_s'] / 1e9:.1f} GB/s"),
        (
            "fp32 multiply-adds per core",
            f"{most['flop_per_s'] / inputs['cores'] / 1e9:.0f} GFLOP/s",
        ),
        ("bf16 multiply-adds per fp32 one", f"{bf16_gain(inputs)}"),
        (
            "linear layers, one row: share of the reads (SmolLM2-135M, Llama-3.2-1B)",
            f"{small.read_share:.0%}, {costs.read_share:.0%}",
        ),
        (
            "linear layers, 512 rows: share of the multiply-adds",
            f"{small.flop_share:.0%}, {costs.flop_share:.0%}",
        ),
        ("a barrier of two threads", f"{costs.barrier_turn * micro:.2f} us"),
        ("a loop of one thread", f"{costs.serial_loop * micro:.2f} us"),
        ("around a decoding step", f"{costs.decode_overhead * milli:.2f} ms"),
        ("Python of a layer of a prompt", f"{costs.eager_layer * milli:.2f} ms"),
        (
            "more per step of several ranks that leave no core free",
            f"{costs.ranks_overhead * milli:.2f} ms",
        ),
        ("sum over two ranks, 4 KiB", f"{costs.meeting * micro:.1f} us"),
        ("large sums, per thread", f"{costs.sum_bytes_per_s / 1e9:.1f} GB/s"),
    ]
    return table(("input", "measured here"), rows)


# ---- predictions ---------------------------------------------------------------------------------


def point(
    inputs: dict[str, Any],
    server: Server,
    name: str,
    cores: int,
    nodes: int,
    is_prompt: bool,
    *,
    engines: int = 1,
    crowded: bool = False,
) -> Prediction | None:
    """A tensor-parallel rank on each of ``nodes / engines`` nodes; None: no such layout.

    ``crowded``: steps of several ranks cost what they cost where the ranks' cores are all there
    are, as on the machine that was measured; else nothing is added for processes.
    """
    if cores % nodes:
        return None
    node = server.node(nodes, core_reads(inputs))
    if cores // nodes > node.cores:
        return None
    costs = costs_of(inputs, name)
    if not crowded:
        costs = replace(costs, ranks_overhead=0.0)
    predict: Callable[..., Prediction] = prompt if is_prompt else decode
    return predict(node, costs, MODELS[name], cores // nodes, nodes // engines)


def speed(prediction: Prediction, is_prompt: bool) -> float:
    return (1024 if is_prompt else 1) / prediction.seconds


def grid(inputs: dict[str, Any], name: str, is_prompt: bool) -> str:
    head = ["cores", "one rank"]
    head += [f"`{option} {nodes}`" for option in ("-tp", "-dp") for nodes in NODES[1:]]
    rows = []
    for cores in CORES:
        cells = [ranks_cell(inputs, REFERENCE, name, cores, nodes, is_prompt) for nodes in NODES]
        for nodes in NODES[1:]:
            found = point(inputs, REFERENCE, name, cores, nodes, is_prompt, engines=nodes)
            cells.append(
                f"{figure(nodes * speed(found, is_prompt))} {found.bound}" if found else ""
            )
        rows.append([str(cores), *cells])
    return table(head, rows)


def ranks_cell(
    inputs: dict[str, Any], server: Server, name: str, cores: int, nodes: int, is_prompt: bool
) -> str:
    """Tokens/s of one engine, from crowded to not, and what bounds the latter."""
    best = point(inputs, server, name, cores, nodes, is_prompt)
    if best is None:
        return ""
    shown = f"{figure(speed(best, is_prompt))} {best.bound}"
    worst = point(inputs, server, name, cores, nodes, is_prompt, crowded=True)
    if nodes == 1 or worst is None:
        return shown
    return f"{figure(speed(worst, is_prompt))} to {shown}"


def servers_table(inputs: dict[str, Any]) -> str:
    names = ("Llama-3.2-1B", "Llama-3.1-8B")
    head = ["server", "GB/s"]
    head += [f"{name}: {what}" for name in names for what in ("decode", "`-tp 2`", "prompt")]
    rows = []
    for server in SERVERS:
        row = [server.name, f"{server.sockets * server.socket_bytes_per_s / 1e9:.0f}"]
        for name in names:
            row.append(ranks_cell(inputs, server, name, server.cores, 1, False))
            both = 2 * server.cores if server.sockets > 1 else 1
            row.append(ranks_cell(inputs, server, name, both, 2, False))
            row.append(ranks_cell(inputs, server, name, server.cores, 1, True))
        rows.append(row)
    return table(head, rows)


def machines_table(inputs: dict[str, Any]) -> str:
    """Replicas on several machines, and tensor parallelism over them."""
    rows = []
    for machines in MACHINES:
        cells = [str(machines)]
        for name in ("Llama-3.2-1B", "Llama-3.1-8B"):
            seconds = over_network(inputs, name, machines)
            alone = point(inputs, REFERENCE, name, REFERENCE.cores, 1, False)
            assert alone is not None
            cells.append(figure(machines / alone.seconds))
            cells.append(figure(1 / seconds))
        rows.append(cells)
    head = ["machines (one rank each)"]
    for name in ("Llama-3.2-1B", "Llama-3.1-8B"):
        head += [f"{name}: replicas, one request each", f"{name}: `-tp`"]
    return table(head, rows)


def over_network(inputs: dict[str, Any], name: str, machines: int) -> float:
    """Seconds of a decoding step cut over machines, each with one node of the reference server."""
    node, model = REFERENCE.node(1, core_reads(inputs)), MODELS[name]
    costs = replace(costs_of(inputs, name), ranks_overhead=0.0)
    step = decode(node, costs, model, node.cores, machines)
    kept = sum(seconds for part, seconds in step.parts.items() if part != "sums over ranks")
    if machines == 1:
        return kept
    # A ring passes 2 (n - 1) / n of the data in 2 (n - 1) turns.
    turns = 2 * (machines - 1)
    data = turns / machines * model.hidden * BYTES / NETWORK_BYTES_PER_S
    return kept + model.layers * SUMS_PER_LAYER * (turns * NETWORK_TURN_S + data)


def model_picture(inputs: dict[str, Any]) -> str:
    panels = []
    for is_prompt in (False, True):
        for name in MODELS:
            lines: dict[str, list[tuple[float, float]]] = {}
            for nodes in NODES:
                label = f"-tp {nodes}, a rank per node" if nodes > 1 else "one rank on one socket"
                lines[label] = [
                    (cores, speed(found, is_prompt))
                    for cores in CORES
                    if (found := point(inputs, REFERENCE, name, cores, nodes, is_prompt))
                ]
            what = "prompt, tokens/s" if is_prompt else "decode, tokens/s"
            panels.append(Panel(f"{name}: {what}", "cores", lines))
    caption = f"{REFERENCE.name}, bf16, one request, prompts of 1,024: predicted, not measured"
    return svg("What more cores and NUMA nodes would give", caption, panels)


# ---- replicas ------------------------------------------------------------------------------------


SERVICES = ("measured", "predicted")


def service(inputs: dict[str, Any], kind: str = "measured") -> Service:
    """An engine's times: of the demo model here, or of the 8B model on a socket of the reference.

    A further request of a step costs what the model says, in either case.
    """
    if kind == "measured":
        name, node, cores = "SmolLM2-135M", here(inputs), inputs["cores"]
    else:
        name, node, cores = "Llama-3.1-8B", REFERENCE.node(1, core_reads(inputs)), REFERENCE.cores
    costs, model = costs_of(inputs, name), MODELS[name]
    one, many = (decode(node, costs, model, cores, 1, n, 800.0).seconds for n in (1, 32))
    each = (many - one) / 31
    if kind == "measured":
        found = inputs["demo"][f"{cores} cores"]
        step, speed_of_prompt = 1 / found["decode_tokens_per_s"], found["prompt_tokens_per_s"]
    else:
        step, speed_of_prompt = one, 1024 / prompt(node, costs, model, cores).seconds
    return Service(max(0.0, step - each), each, 1 / speed_of_prompt)


def service_table(inputs: dict[str, Any]) -> str:
    names = {
        "measured": "measured: SmolLM2-135M on this machine",
        "predicted": f"predicted: Llama-3.1-8B on a socket of {REFERENCE.name}",
    }
    rows = []
    for kind in SERVICES:
        found = service(inputs, kind)
        times = (found.step, found.decode_token, found.prompt_token)
        rows.append([names[kind], *(f"{seconds * 1e3:.2f} ms" for seconds in times)])
    return table(("engine", "step", "per request", "per prompt token"), rows)


def replicas_table(rows: Sequence[dict[str, Any]]) -> str:
    head = (
        "engine",
        "load",
        "replicas",
        "policy",
        "output tokens/s",
        "first token p50",
        "p99",
        "prefix hits",
        "refused",
        "decisions/s",
    )
    return table(
        head,
        [
            (
                row["engine"],
                f"{row['load']:.0%}",
                f"{row['replicas']:,}",
                row["policy"],
                figure(row["tokens_per_s"]),
                f"{row['first_p50']:.2f} s",
                f"{row['first_p99']:.2f} s",
                f"{row['hit_rate']:.0%}",
                f"{row['refused'] / row['arrived']:.0%}",
                figure(row["decisions_per_s"], 2),
            )
            for row in rows
        ],
    )


def replicas_picture(rows: Sequence[dict[str, Any]], load: float) -> str:
    chosen = [row for row in rows if row["load"] == load and row["engine"] == "measured"]
    policies = list(dict.fromkeys(row["policy"] for row in chosen))

    def lines(value: Callable[[dict[str, Any]], float]) -> dict[str, list[tuple[float, float]]]:
        return {
            policy: [(row["replicas"], value(row)) for row in chosen if row["policy"] == policy]
            for policy in policies
        }

    panels = [
        Panel(
            "output tokens/s of a replica",
            "replicas",
            lines(lambda row: row["tokens_per_s"] / row["replicas"]),
            is_log=False,
        ),
        Panel("first token, p50, seconds", "replicas", lines(lambda row: row["first_p50"])),
        Panel("first token, p99, seconds", "replicas", lines(lambda row: row["first_p99"])),
        Panel(
            "prompt tokens found in caches",
            "replicas",
            lines(lambda row: row["hit_rate"]),
            is_log=False,
            most=1.0,
        ),
        Panel("routing decisions/s", "replicas", lines(lambda row: row["decisions_per_s"])),
    ]
    caption = f"simulated engines at {load:.0%} of what they could do without any prefix found"
    return svg("Which replica gets a request", caption, panels)
