"""Every environment variable this backend reads, in one table.

Variables of the host keep the host's names and meanings; the rest start with ``CPU_BACKEND_``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from cpu_backend.errors import ConfigError


@dataclass(frozen=True)
class Variable:
    """Name, default as text, and one line for ``python -m cpu_backend.info``."""

    name: str
    default: str
    meaning: str

    def get(self) -> str:
        """The value, or the default when unset or empty."""
        return os.environ.get(self.name, "") or self.default


ISA = Variable(
    "CPU_BACKEND_ISA",
    "",
    "force amx, avx512_bf16, avx512_vnni, avx512, avx2_vnni, avx2, neon, vxe or scalar",
)
DEVICE = Variable("CPU_BACKEND_DEVICE", "", "'cpu' activates the backend on a host with a GPU")
ACTIVATIONS = Variable(
    "CPU_BACKEND_ACTIVATIONS",
    "int16",
    "activations beside weight-only integer weights: int16 (accurate) or int8 (fast prompts)",
)
START_METHOD = Variable(
    "VLLM_WORKER_MULTIPROC_METHOD", "fork", "how the engine process starts: fork or spawn"
)
KVCACHE_SPACE = Variable(
    "VLLM_CPU_KVCACHE_SPACE", "", "KV cache in GiB (fractions too); unset: auto"
)
OMP_THREADS_BIND = Variable(
    "VLLM_CPU_OMP_THREADS_BIND", "auto", "auto, nobind, all, or CPU lists with | between ranks"
)
NUM_OF_RESERVED_CPU = Variable(
    "VLLM_CPU_NUM_OF_RESERVED_CPU", "", "cores per rank left to the rest of the server"
)
NUMA = Variable(
    "CPU_BACKEND_NUMA", "", "nodes to assume: CPU lists with | between them, such as 0-3|4-7"
)
VISIBLE_MEMORY_NODES = Variable("CPU_VISIBLE_MEMORY_NODES", "", "NUMA nodes to use, as a list")
CHECK_REPLAY = Variable(
    "CPU_BACKEND_CHECK_REPLAY",
    "0",
    "compare every N-th replayed step with the model's own; 0: none",
)

ALL = (
    ISA,
    DEVICE,
    ACTIVATIONS,
    START_METHOD,
    KVCACHE_SPACE,
    OMP_THREADS_BIND,
    NUM_OF_RESERVED_CPU,
    NUMA,
    VISIBLE_MEMORY_NODES,
    CHECK_REPLAY,
)


def check_replay() -> int:
    """Every how many replayed steps the model's own forward runs as well; 0: never."""
    text = CHECK_REPLAY.get()
    if not text.isdecimal():
        raise ConfigError(
            f"{CHECK_REPLAY.name}={text} is not a number of steps: give 0 for no checks, or 10 to "
            "compare every tenth replayed step."
        )
    return int(text)


def activations() -> str:
    """What activations become beside weight-only integer weights: "int16" or "int8"."""
    kind = ACTIVATIONS.get()
    if kind not in ("int16", "int8"):
        raise ConfigError(
            f"{ACTIVATIONS.name}={kind} is not known: use int16, which is more accurate than "
            "bfloat16, or int8, which is faster on long inputs."
        )
    return kind
