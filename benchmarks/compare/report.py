"""The Markdown page: ratios first, then every figure with its spread and its share of the bound."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from benchmarks.compare.peers import OURS, PEERS
from benchmarks.compare.summary import Cell, Metric, Ratio, Summary, common_prefix

SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def markdown(
    summaries: list[Summary], machine: dict[str, object], setup_failures: dict[str, str]
) -> str:
    parts = ["# Comparison with peers", machine_line(machine)]
    for summary in summaries:
        parts += model_part(summary)
    reasons = [f"- {what}: {reason}" for what, reason in setup_failures.items()]
    if reasons:
        parts += ["## Could not be set up", "\n".join(reasons)]
    return "\n\n".join(parts) + "\n"


def machine_line(machine: dict[str, object]) -> str:
    cpus = machine["cpus"]
    assert isinstance(cpus, (list, tuple))
    flags = machine["flags"]
    assert isinstance(flags, (list, tuple))
    return f"{machine['model']}, {machine['architecture']}, {len(cpus)} cores; {' '.join(flags)}."


def model_part(summary: Summary) -> list[str]:
    parts = [f"## {summary.model}", probe_line(summary), "### Times better than each peer"]
    parts += [ratio_table(summary), "### Figures"]
    for metric in summary.metrics:
        parts += [f"**{metric.title}**", figure_table(summary, metric)]
    if summary.greedy:
        parts += ["### Greedy tokens", greedy_table(summary)]
    parts += ["### Peers", peer_table(summary)]
    if summary.failures:
        parts += ["### Not measured", failure_table(summary)]
    return parts


def probe_line(summary: Summary) -> str:
    bandwidth = [probe.bytes_per_s / 1e9 for probe in summary.probes]
    peak = [probe.flop_per_s / 1e9 for probe in summary.probes]
    days = sorted({time[:10] for time in summary.times})
    return (
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))}, commit {', '.join(summary.commits)}. "
        f"The machine's own limits, probed before and after each run: read bandwidth "
        f"{spread(bandwidth)} GB/s, fp32 multiply-adds {spread(peak)} GFLOP/s."
    )


def spread(values: list[float]) -> str:
    """Median (lowest-highest)."""
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def ratio_table(summary: Summary) -> str:
    """Rows: metric and dtype. Columns: peers in the same dtype, and the best in any wide dtype."""
    peers = [peer for peer in summary.peers if peer != OURS]
    rows = []
    for metric in summary.metrics:
        best = summary.best_peer(metric, OURS)
        for dtype in summary.dtypes:
            ratios = [summary.ratio(metric, dtype, OURS, peer, dtype) for peer in peers]
            overall = summary.ratio(metric, dtype, OURS, *best) if best else None
            if not any((*ratios, overall)):
                continue
            last = f"{times(overall)} {best[0]} {short(best[1])}" if best and overall else ""
            rows.append([metric.title, short(dtype), *map(times, ratios), last])
    return table(["", "type", *peers, "best peer in any 16- or 32-bit type"], rows)


def figure_table(summary: Summary, metric: Metric) -> str:
    rows = []
    for dtype in summary.dtypes:
        for peer in summary.peers:
            cell = summary.cells.get((metric.key, dtype, peer))
            if cell is not None:
                ratio = summary.ratio(metric, dtype, OURS, peer, dtype)
                better = times(ratio) if peer != OURS else ""
                rows.append([peer, short(dtype), figure(cell), share(cell), others(cell), better])
    head = ["peer", "type", "median (range)", "of the bound", "cores others used", "times better"]
    return table(head, rows)


def greedy_table(summary: Summary) -> str:
    """What each peer says to one prompt, and how far it agrees with the first fp32 peer."""
    in_fp32 = [key for key in summary.greedy if key[1] == "float32"]
    preferred = [key for key in in_fp32 if key[0] == "transformers"]
    reference = (preferred or in_fp32 or list(summary.greedy))[0]
    expected = summary.greedy[reference]["tokens"]
    rows = []
    for (peer, dtype), result in summary.greedy.items():
        equal = common_prefix(result["tokens"], expected)
        text = " ".join(result["text"].split())
        agrees = f"{equal} of {len(expected)}"
        rows.append([peer, short(dtype), agrees, text or f"tokens {result['tokens'][:8]}…"])
    head = f"tokens equal to {reference[0]} {short(reference[1])}"
    return table(["peer", "type", head, "text"], rows)


def peer_table(summary: Summary) -> str:
    rows = []
    for peer in summary.peers:
        versions = dict(summary.versions.get(peer, {}))
        about = PEERS[peer].about if peer in PEERS else ""
        preloaded = summary.environs.get(peer, {}).get("LD_PRELOAD", "")
        if preloaded:
            versions["preloaded"] = " ".join(path.split("/")[-1] for path in preloaded.split(":"))
        rows.append([peer, about, ", ".join(f"{name} {v}" for name, v in versions.items())])
    return table(["peer", "what", "versions"], rows)


def failure_table(summary: Summary) -> str:
    by_reason: dict[tuple[str, str, str], list[str]] = {}
    for (peer, dtype, what), reason in summary.failures.items():
        by_reason.setdefault((peer, dtype, reason), []).append(what)
    rows = [
        [peer, short(dtype), ", ".join(works), reason]
        for (peer, dtype, reason), works in by_reason.items()
    ]
    return table(["peer", "type", "work", "reason"], rows)


def figure(cell: Cell) -> str:
    low, high = cell.spread
    return f"{cell.median:.3g} ({low:.3g}-{high:.3g})"


def share(cell: Cell) -> str:
    return "" if cell.share is None else f"{cell.share:.0%}"


def others(cell: Cell) -> str:
    """The most of all rounds: one disturbed round is what a reader must know of."""
    return f"{max(cell.other_cores.values()):.2f}" if cell.other_cores else ""


def times(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    if ratio.rounds == 1:
        return f"{ratio.median:.2f}x"
    return f"{ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"


def short(dtype: str) -> str:
    return SHORT.get(dtype, dtype)


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    lines = [head, ["---"] * len(head), *escaped]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
