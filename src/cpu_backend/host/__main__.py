"""``python -m cpu_backend.host``: what this backend changes in the host, and what differs here."""

from __future__ import annotations

import importlib
import signal
import sys

from cpu_backend import host


def main() -> int:
    """Exit code 1 where the installed host differs."""
    for name in host.declare():
        text = importlib.import_module(f"{host.__name__}.{name}").__doc__ or ""
        print(f"{name}: {text.strip()}\n")
    for difference in host.check():
        print(f"The installed vLLM {difference}.")
    return 1 if host.check() else 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # head reads as much as it wants
    sys.exit(main())
