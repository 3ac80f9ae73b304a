"""Commands that are of a GPU.

What: ``vllm preload``, ``vllm snapshot`` and ``vllm bench forward`` end with a sentence.
Why: they share or save what lies in the memory of an NVIDIA or AMD GPU, or time CUDA graphs; the
    host says so with a traceback, after it has read the model's configuration, or its weights, or
    looked for the GPU's tools.
Since: 0.31
Until: never: manners, not a defect.
"""

from __future__ import annotations

from typing import Any, NoReturn

from cpu_backend.errors import ConfigError
from cpu_backend.host.seam import Hosts, patch

WITH_COMMANDS = Hosts(since=(0, 31))
SNAPSHOT = "vllm.entrypoints.cli.snapshot"
SERVE = (
    "start a server with `vllm serve` instead, which reads a checkpoint from the system's page "
    "cache once it has been read."
)


@patch("vllm.entrypoints.cli.preload", "PreloadSubcommand.cmd(args)", hosts=WITH_COMMANDS)
def preload(original: Any) -> Any:
    """In a sentence."""
    del original
    return _refused("vllm preload keeps weights in a GPU's memory", SERVE)


@patch(SNAPSHOT, "run_create(args)", hosts=WITH_COMMANDS)
def create(original: Any) -> Any:
    """In a sentence."""
    del original
    return _refused("vllm snapshot saves what a GPU holds", SERVE)


@patch(SNAPSHOT, "run_restore(args)", hosts=WITH_COMMANDS)
def restore(original: Any) -> Any:
    """In a sentence."""
    del original
    return _refused("vllm snapshot gives back to a GPU what it held", SERVE)


@patch(
    "vllm.entrypoints.cli.benchmark.forward",
    "BenchmarkForwardSubcommand.cmd(args)",
    hosts=Hosts(since=(0, 33)),
)
def time_graphs(original: Any) -> Any:
    """In a sentence."""
    del original
    return _refused(
        "vllm bench forward times CUDA graphs",
        "measure whole requests with `vllm bench latency` instead.",
    )


def _refused(what: str, instead: str) -> Any:
    def refuse(args: Any) -> NoReturn:
        raise ConfigError(f"{what}, and this device is the CPU: {instead}")

    return refuse
