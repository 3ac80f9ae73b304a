"""Commands that move a GPU's memory.

What: ``vllm preload`` and ``vllm snapshot`` end with a sentence.
Why: they share or save what lies in the memory of an NVIDIA or AMD GPU; the host says so with a
    traceback, after it has read the model's configuration or looked for the GPU's tools.
Since: 0.31
Until: never: manners, not a defect.
"""

from __future__ import annotations

from typing import Any, NoReturn

from cpu_backend.errors import ConfigError
from cpu_backend.host.seam import Hosts, patch

WITH_COMMANDS = Hosts(since=(0, 31))
SNAPSHOT = "vllm.entrypoints.cli.snapshot"


@patch("vllm.entrypoints.cli.preload", "PreloadSubcommand.cmd(args)", hosts=WITH_COMMANDS)
def preload(original: Any) -> Any:
    """In a sentence."""
    del original
    return _refused("vllm preload keeps weights in a GPU's memory")


@patch(SNAPSHOT, "run_create(args)", hosts=WITH_COMMANDS)
def create(original: Any) -> Any:
    """In a sentence."""
    del original
    return _refused("vllm snapshot saves what a GPU holds")


@patch(SNAPSHOT, "run_restore(args)", hosts=WITH_COMMANDS)
def restore(original: Any) -> Any:
    """In a sentence."""
    del original
    return _refused("vllm snapshot gives back to a GPU what it held")


def _refused(what: str) -> Any:
    def refuse(args: Any) -> NoReturn:
        raise ConfigError(
            f"{what}, and this device is the CPU: start a server with `vllm serve` instead, which "
            "reads a checkpoint from the system's page cache once it has been read."
        )

    return refuse
