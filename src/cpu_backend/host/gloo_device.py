"""All groups of a process talk over the same gloo device.

What: torch's ``ProcessGroupGloo`` is given this process's devices, where torch makes new ones for
    each group.
Why: the host makes a dozen groups, of a single process, too; each device has a thread that wakes
    a hundred times a second, also while there is nothing to do and while every core computes.
Since: 0.30
Until: torch's groups share devices, or a group of one process has none.
"""

from __future__ import annotations

import os
from typing import Any

from cpu_backend.host.seam import change


@change("vllm.distributed.parallel_state", "init_distributed_environment")
def share(_: Any) -> None:
    """In this process, and in its forks, each of which makes its own."""
    from torch.distributed import distributed_c10d

    devices: dict[int, list[Any]] = {}  # by process

    class ProcessGroupGloo(distributed_c10d.ProcessGroupGloo):
        def __init__(self, store: Any, rank: int, size: int, *options: Any, **others: Any) -> None:
            if os.getpid() not in devices:
                devices[os.getpid()] = _devices(type(self))
            made = None if options else _options(type(self), devices[os.getpid()], others)
            if made is None:
                super().__init__(store, rank, size, *options, **others)
            else:
                super().__init__(store, rank, size, made)

    distributed_c10d.ProcessGroupGloo = ProcessGroupGloo


def _devices(gloo: Any) -> list[Any]:
    """Those that torch would make."""
    names = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if not names:
        return [gloo.create_default_device()]
    return [gloo.create_device(interface=name) for name in names.split(",")]


def _options(gloo: Any, devices: list[Any], others: dict[str, Any]) -> Any:
    """With these devices, as many threads for them as torch takes, and what is asked for by name;
    None where this torch's options have no such name."""
    options = gloo._Options()
    options._devices, options._threads = devices, 2 * len(devices)
    for name, value in others.items():
        field = "_timeout" if name == "timeout" else name
        if not hasattr(options, field):
            return None
        setattr(options, field, value)
    return options
