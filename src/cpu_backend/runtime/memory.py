"""How many bytes the KV cache of one rank gets, and the sentence that says why.

Called by the worker after its weights are in memory, so that what is available is what is left.
Knows bytes only: neither the model nor the layout of the cache.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cpu_backend import envs
from cpu_backend.errors import ConfigError
from cpu_backend.runtime.cgroup import read_cgroup_memory
from cpu_backend.runtime.sysfs import PROCFS, SYSFS, Memory
from cpu_backend.runtime.topology import read_machine_memory, read_nodes_memory

KVCACHE_ENV = envs.KVCACHE_SPACE.name
GIB = 1 << 30

# Kept free in auto mode for activations, page cache and the other processes: a tenth of the limit,
# at least 1 GiB. Where that is more than a quarter of what is available (a container of 2 GiB), it
# is that quarter, so that small models still start, but no less than what a step takes.
MARGIN_OF_TOTAL = 0.10
MARGIN_MIN_BYTES = GIB
MARGIN_MAX_OF_AVAILABLE = 0.25
# What processes come to own of the memory that they share after a fork.
UNSHARED = 128 << 20

Limiter = Literal["cgroup", "node", "machine"]

_LIMITERS: dict[Limiter, tuple[str, str]] = {
    "cgroup": ("the memory limit of the container (cgroup)", "raise that limit"),
    "node": ("the memory of the rank's NUMA node", "spread the model over more nodes"),
    "machine": ("the memory of the machine", "stop other programs"),
}


@dataclass(frozen=True)
class MemoryStatus:
    """This rank's share of the tightest memory, in bytes; ``limited_by`` says whose it is."""

    total: int
    available: int
    limited_by: Limiter


@dataclass(frozen=True)
class KvBudget:
    """Bytes for the KV cache of one rank, and one sentence for the log."""

    bytes: int
    explanation: str


def parse_kvcache_space(text: str | None) -> int | None:
    """``VLLM_CPU_KVCACHE_SPACE`` in GiB, fractions allowed, as bytes; None if unset or empty."""
    if text is None or not text.strip():
        return None
    try:
        gib = float(text)
    except ValueError:
        gib = math.nan
    if not math.isfinite(gib * GIB) or gib * GIB < 1:
        raise ConfigError(
            f"{KVCACHE_ENV}={text!r} is not a size of the KV cache: give a positive number of GiB"
            " such as 4 or 0.5, or unset it to let the memory decide."
        )
    return int(gib * GIB)


def read_memory_status(
    nodes: tuple[int, ...] = (),
    sysfs: Path = SYSFS,
    procfs: Path = PROCFS,
    *,
    local_ranks: int = 1,
    node_ranks: int = 1,
) -> MemoryStatus:
    """What one rank can still get: the smallest of machine, its NUMA ``nodes`` and cgroup.

    All ``local_ranks`` draw on the machine and the cgroup, ``node_ranks`` of them on the nodes, and
    all measure before any allocates; so each counts only its equal share of what is there. Leave
    ``nodes`` out while they are not known.
    """
    sources: list[tuple[Limiter, Memory | None, int]] = [
        ("cgroup", read_cgroup_memory(sysfs, procfs), local_ranks),
        ("node", read_nodes_memory(nodes, sysfs), node_ranks),
        ("machine", read_machine_memory(sysfs, procfs), local_ranks),
    ]
    # An unlimited v1 cgroup reports about 2**63 bytes and therefore never wins.
    shares = [
        MemoryStatus(memory.total // ranks, memory.available // ranks, limiter)
        for limiter, memory, ranks in sources
        if memory is not None
    ]
    tightest = min(shares, key=lambda share: share.available)
    total = min(share.total for share in shares)
    return MemoryStatus(total, tightest.available, tightest.limited_by)


def plan_kv_bytes(
    requested: int | None,
    status: MemoryStatus,
    utilization: float | None = None,
    *,
    used_bytes: int = 0,
    useful_bytes: int | None = None,
    step_bytes: int = 0,
) -> KvBudget:
    """Size the KV cache.

    A request is granted whole or refused. Without one, the cache gets what is available less a
    safety margin of at least ``step_bytes``, but never more than ``useful_bytes`` (every sequence
    at full length), nor what ``utilization`` of the total leaves after the ``used_bytes`` this rank
    already holds; pass ``utilization`` only if the user chose it. Raises ConfigError if that does
    not fit.
    """
    who, way_out = _LIMITERS[status.limited_by]
    state = f"{_gib(status.available)} of {_gib(status.total)} available, limited by {who}"
    margin = max(safety_margin(status), step_bytes)
    if requested is not None:
        if requested > status.available:
            raise ConfigError(
                f"The KV cache should take {_gib(requested)} ({KVCACHE_ENV} or"
                f" --kv-cache-memory-bytes), but there are {state}: ask for less, or {way_out}."
            )
        left = status.available - requested
        risk = f"; only {_gib(left)} remain, the process may be killed" if left < margin else ""
        return KvBudget(requested, f"KV cache {_gib(requested)} as requested; {state}{risk}.")

    caps = {f"what is available less a margin of {_gib(margin)}": status.available - margin}
    if utilization is not None:
        used = f" less the {_gib(used_bytes)} already used" if used_bytes else ""
        name = f"--gpu-memory-utilization {utilization:g}{used}"
        caps[name] = int(status.total * utilization) - used_bytes
    if useful_bytes is not None:
        caps["what all sequences at full length can fill"] = useful_bytes
    cap = min(caps, key=lambda name: caps[name])
    if caps[cap] <= 0:
        raise ConfigError(
            f"No memory is left for the KV cache ({cap}; {state}): use a smaller or quantized"
            f" model, give the process more memory, or set {KVCACHE_ENV}."
        )
    return KvBudget(caps[cap], f"KV cache {_gib(caps[cap])}: {cap}; {state}.")


def largest_step_bytes(tokens: int, hidden: int, widest: int, itemsize: int) -> int:
    """About what the largest step, of so many tokens, takes beside the KV cache: a few rows of the
    hidden size per token, and of the rank's part of the widest layer's; and :data:`UNSHARED`."""
    return tokens * (6 * hidden + 3 * widest) * itemsize + UNSHARED


def media_cache_gib(status: MemoryStatus) -> float:
    """What processed pictures and sounds may take, where the user does not say: 1/16 of all."""
    return round(status.total / GIB / 16, 2)


def safety_margin(status: MemoryStatus) -> int:
    """Bytes that the automatic size leaves free."""
    wanted = max(MARGIN_MIN_BYTES, int(status.total * MARGIN_OF_TOTAL))
    return min(wanted, int(status.available * MARGIN_MAX_OF_AVAILABLE))


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
