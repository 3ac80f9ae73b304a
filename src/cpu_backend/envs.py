"""Every environment variable this backend reads, in one table.

Variables of the host keep the host's names and meanings; the rest start with ``CPU_BACKEND_``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

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
    "force one instruction set of those that the info command lists as runnable",
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
DISK_CACHE = Variable(
    "CPU_BACKEND_DISK_CACHE", "", "a folder for pages of prompts, which outlive the server there"
)
DISK_CACHE_SPACE = Variable(
    "CPU_BACKEND_DISK_CACHE_SPACE", "", "GiB of that folder at most; unset: half of what is free"
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
HEALTH_SECONDS = Variable(
    "CPU_BACKEND_HEALTH_SECONDS",
    "30",
    "/health answers 503 after so long without a sign of life; a step may take 60 times as long",
)
LINEAR = Variable(
    "CPU_BACKEND_LINEAR",
    "native",
    "who multiplies linear layers: native, torch, zentorch, ipex, auto",
)
EXPERTS = Variable(
    "CPU_BACKEND_EXPERTS", "native", "who computes mixtures of experts: the same names"
)
MOE_PREPACK = Variable(
    "VLLM_CPU_MOE_PREPACK",
    "1",
    "0: ipex keeps experts in the checkpoint's order; native always packs",
)
SGL_KERNEL = Variable(
    "VLLM_CPU_SGL_KERNEL", "", "not needed: native kernels serve small batches on every CPU"
)
TRACEBACK = Variable("CPU_BACKEND_TRACEBACK", "", "1 prints tracebacks in place of one sentence")

ALL = (
    ISA,
    DEVICE,
    ACTIVATIONS,
    START_METHOD,
    KVCACHE_SPACE,
    DISK_CACHE,
    DISK_CACHE_SPACE,
    OMP_THREADS_BIND,
    NUM_OF_RESERVED_CPU,
    NUMA,
    VISIBLE_MEMORY_NODES,
    CHECK_REPLAY,
    HEALTH_SECONDS,
    LINEAR,
    EXPERTS,
    MOE_PREPACK,
    SGL_KERNEL,
    TRACEBACK,
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


def disk_cache() -> Path | None:
    """The folder for pages of prompts; None where nobody wants one."""
    return Path(text).expanduser().absolute() if (text := DISK_CACHE.get()) else None


def disk_cache_bytes() -> int | None:
    """How many bytes pages of prompts may take; None: half of what is free."""
    if not (text := DISK_CACHE_SPACE.get()):
        return None
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0 < size < float("inf"):
        raise ConfigError(
            f"{DISK_CACHE_SPACE.name}={text} is no size: give it in GiB, as 20 or 0.5."
        )
    return int(size * 2**30)


def user_cache() -> Path:
    """The folder for what can be made again.  ConfigError where the user has no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cpu_backend"
    except RuntimeError as error:
        raise ConfigError(
            "This user has no home folder: set HOME or XDG_CACHE_HOME to a folder that can be "
            "written."
        ) from error


def health_seconds() -> float:
    """How long the engine may be silent before it counts as hung."""
    text = HEALTH_SECONDS.get()
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds < float("inf"):
        raise ConfigError(f"{HEALTH_SECONDS.name}={text} is no number of seconds: use 1 or more.")
    return seconds


def packs_experts() -> bool:
    """Whether a provider that can leave experts in the checkpoint's order packs them."""
    return MOE_PREPACK.get() != "0"


def wants_traceback() -> bool:
    """Whether whoever started this process hunts an error."""
    return TRACEBACK.get() not in ("", "0")
