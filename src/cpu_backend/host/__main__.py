"""``python -m cpu_backend.host``: what this backend changes in the host, and what differs here."""

from __future__ import annotations

import importlib
import signal
import sys

from cpu_backend import activation, host
from cpu_backend.host import seam, source

SOURCES = "https://github.com/vllm-project/vllm/blob/v{version}/vllm/{path}"


def main() -> int:
    """Exit code 1 where the installed host differs."""
    for name in host.declare():
        module = f"{host.__name__}.{name}"
        text = importlib.import_module(module).__doc__ or ""
        print(
            f"{name}: {text.strip()}", *map("Upstream: {}".format, upstream(module)), "", sep="\n"
        )
    for difference in host.check():
        print(f"The installed vLLM {difference}.")
    return 1 if host.check() else 0


def upstream(module: str) -> list[str]:
    """Where the sources lie that this file of changes is for, as installed."""
    installed = source.host()
    version = activation.host_release().partition("+")[0]
    names = {installed.first(one.modules) for one in seam.changes() if one.file == module}
    files = [installed.file(name) for name in sorted(names)]
    paths = [file.relative_to(installed.root).as_posix() for file in files if file]
    return [SOURCES.format(version=version, path=path) for path in paths]


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # head reads as much as it wants
    sys.exit(main())
