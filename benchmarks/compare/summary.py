"""From records to figures: medians and spread over rounds, ratios within rounds, shares of bounds.

A value of a round is the median of its repetitions. Ratios pair values of the same round, because a
noisy machine is noisy for both; the median of these ratios is the figure, their range its spread.
Pure functions of the records, no files.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.compare.models import Shape
from benchmarks.compare.work import Limits, Work

WIDE = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Metric:
    """``sign`` is 1 where more is better and -1 where less is."""

    key: str
    title: str
    sign: int


FIXED_METRICS = (
    Metric("first_token", "start-up: process begun to first token, s", -1),
    Metric("construct", "engine construction after imports, s", -1),
    Metric("server_first_token", "server: process begun to first token over HTTP, s", -1),
    Metric("memory", "peak memory, pages shared by processes counted for each, GiB", -1),
    Metric("pss", "memory while idle between works, shared pages counted once, GiB", -1),
    Metric("server_memory", "server: peak memory, GiB", -1),
)


@dataclass
class Cell:
    """One figure of one peer in one dtype: round -> value, round -> share of the bound.

    ``other_cores`` is what other programs used of the machine meanwhile.
    """

    values: dict[int, float] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)
    other_cores: dict[int, float] = field(default_factory=dict)

    def add(
        self, number: int, value: float, other_cores: float, share: float | None = None
    ) -> None:
        """Of several tries in one round the least disturbed one counts."""
        if other_cores <= self.other_cores.get(number, float("inf")):
            self.values[number] = value
            self.other_cores[number] = other_cores
            if share is not None:
                self.shares[number] = share

    @property
    def median(self) -> float:
        return statistics.median(self.values.values())

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.values.values()), max(self.values.values())

    @property
    def share(self) -> float | None:
        return statistics.median(self.shares.values()) if self.shares else None

    @property
    def bound(self) -> float | None:
        """What the machine allowed, as a typical value."""
        bounds = [self.values[number] / share for number, share in self.shares.items()]
        return statistics.median(bounds) if bounds else None


@dataclass(frozen=True)
class Ratio:
    """How many times better one cell is than another."""

    median: float
    low: float
    high: float
    rounds: int


@dataclass
class Summary:
    """The figures of one model. ``cells`` by (metric, dtype, peer)."""

    model: str
    metrics: list[Metric]
    dtypes: list[str]
    peers: list[str]
    cells: dict[tuple[str, str, str], Cell]
    # (peer, dtype, what) -> reason
    failures: dict[tuple[str, str, str], str]
    greedy: dict[tuple[str, str], dict[str, Any]]
    versions: dict[str, dict[str, str]]
    environs: dict[str, dict[str, str]]
    probes: list[Limits]
    commits: list[str]
    times: list[str]

    def ratio(
        self, metric: Metric, dtype: str, ours: str, peer: str, peer_dtype: str
    ) -> Ratio | None:
        """How many times better ``ours`` is; None without a common round."""
        mine = self.cells.get((metric.key, dtype, ours))
        theirs = self.cells.get((metric.key, peer_dtype, peer))
        if mine is None or theirs is None:
            return None
        ratios = [
            (mine.values[number] / theirs.values[number]) ** metric.sign
            for number in sorted(mine.values.keys() & theirs.values.keys())
        ]
        if not ratios:
            return None
        return Ratio(statistics.median(ratios), min(ratios), max(ratios), len(ratios))

    def best_peer(self, metric: Metric, ours: str) -> tuple[str, str] | None:
        """(peer, dtype) with the best median in a 16- or 32-bit type; not a variant of ours."""
        candidates = [
            (metric.sign * cell.median, peer, dtype)
            for (key, dtype, peer), cell in self.cells.items()
            if key == metric.key and dtype in WIDE and not peer.startswith(ours)
        ]
        return max(candidates)[1:] if candidates else None


def summarize(model: str, records: Iterable[dict[str, Any]]) -> Summary:
    """The figures of one model from the records of ``runs.jsonl``."""
    mine = [record for record in records if record["model"] == model]
    cells: dict[tuple[str, str, str], Cell] = {}
    failures: dict[tuple[str, str, str], str] = {}
    works: dict[str, Work] = {}
    for record in mine:
        number, peer, dtype = record["round"], record["peer"], record["dtype"]
        shape, limits = Shape(**record["shape"]), machine_limits(record)
        for text, result in record["works"].items():
            works[text] = work = Work.parse(text)
            value = statistics.median(result["values"])
            share = value / work.bound(shape, dtype, limits)
            cell = cells.setdefault((text, dtype, peer), Cell())
            cell.add(number, value, result["other_cores"], share)
            failures.pop((peer, dtype, text), None)
        for text, reason in record["failures"].items():
            works[text] = Work.parse(text)
            if (text, dtype, peer) not in cells:
                failures[peer, dtype, text] = reason
        for key, value in start_values(record).items():
            cell = cells.setdefault((key, dtype, peer), Cell())
            cell.add(number, value, record["startup"]["other_cores"])
        for key, value in memory_values(record).items():
            cell = cells.setdefault((key, dtype, peer), Cell())
            # The most of the round's processes, whatever ran beside them.
            cell.values[number] = max(value, cell.values.get(number, 0.0))
    work_metrics = [Metric(text, works[text].title, 1) for text in sorted(works, key=work_order)]
    metrics = [*work_metrics, *FIXED_METRICS]
    return Summary(
        model=model,
        metrics=[m for m in metrics if any(key == m.key for key, _, _ in cells)],
        dtypes=unique(record["dtype"] for record in mine),
        peers=unique(record["peer"] for record in mine),
        cells=cells,
        failures=failures,
        greedy={
            (record["peer"], record["dtype"]): record["greedy"]
            for record in mine
            if "greedy" in record and not record["is_server"]
        },
        versions={
            record["peer"]: record["startup"]["versions"]
            for record in mine
            if record.get("startup", {}).get("versions")
        },
        environs={record["peer"]: record["environ"] for record in mine if "environ" in record},
        probes=[Limits(**probe) for record in mine for probe in record["limits"]],
        commits=unique(record["commit"] for record in mine),
        times=sorted(record["time"] for record in mine),
    )


def machine_limits(record: dict[str, Any]) -> Limits:
    """The better of the probes before and after: what disturbed one of them was not the machine."""
    before, after = (Limits(**probe) for probe in record["limits"])
    return Limits(
        max(before.bytes_per_s, after.bytes_per_s), max(before.flop_per_s, after.flop_per_s)
    )


def start_values(record: dict[str, Any]) -> dict[str, float]:
    """Seconds of one start; none where it failed."""
    startup = record.get("startup")
    if startup is None:
        return {}
    if record["is_server"]:
        return {"server_first_token": startup["first_token_s"]}
    return {"first_token": startup["first_token_s"], "construct": startup["construct_s"]}


def memory_values(record: dict[str, Any]) -> dict[str, float]:
    """GiB of one process and all that it started."""
    memory = record.get("memory_bytes")
    if memory is None:
        return {}
    if record["is_server"]:
        return {"server_memory": memory["peak_rss"] / 2**30}
    return {"memory": memory["peak_rss"] / 2**30, "pss": memory["pss"] / 2**30}


def work_order(text: str) -> tuple[int, str]:
    return list(Work.KINDS).index(text.partition(":")[0]), text


def unique(values: Iterable[str]) -> list[str]:
    """In order of first appearance."""
    return list(dict.fromkeys(values))


def common_prefix(a: list[int], b: list[int]) -> int:
    """How many leading tokens are equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
