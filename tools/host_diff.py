"""``python -m tools.host_diff OLD NEW``: what two versions of the host define differently of what
this backend relies on.

OLD and NEW are versions, whose wheels pip fetches (`pip download`, some 400 MB each), folders that
hold the package ``vllm``, or the word ``installed``.  Prints a unified diff of every definition
that a change or an import of this package names; ``--names`` prints names alone.  Exit code 1 where
a symbol that a change relies on is missing in NEW, as the plugin would then step aside.
"""

from __future__ import annotations

import argparse
import difflib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from cpu_backend import host
from cpu_backend.host import seam
from cpu_backend.host.source import Source
from cpu_backend.host.source import host as host_source


def fetched(version: str, into: Path) -> Path:
    """The folder of the package ``vllm``: of a version, in a folder, or the installed one."""
    if version == "installed":
        return host_source().root
    folder = Path(version)
    if folder.is_dir():
        return folder if folder.name == "vllm" else folder / "vllm"
    wanted = into / version
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "-d", str(wanted), f"vllm=={version}"], check=True)
    [wheel] = wanted.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(wanted, [n for n in archive.namelist() if n.endswith(".py")])
    return wanted / "vllm"


def main() -> int:
    """Print what differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--names", action="store_true", help="names without their code")
    args = parser.parse_args()
    host.declare()
    with tempfile.TemporaryDirectory() as folder:
        old, new = (Source(fetched(version, Path(folder))) for version in (args.old, args.new))
        symbols = dict.fromkeys(
            (modules, symbol.partition("(")[0])
            for source in (old, new)
            for modules, symbol in seam.relied_on(source)
        )
        differ = 0
        for modules, symbol in symbols:
            before, after = (source.definition(modules, symbol) for source in (old, new))
            if before == after:
                continue
            differ += 1
            name = f"{new.first(modules)}.{symbol}"
            lines = difflib.unified_diff(
                before.splitlines(), after.splitlines(), f"{args.old} {name}", name, lineterm=""
            )
            print(name if args.names else "\n".join(lines) + "\n")
        print(f"{differ} of {len(symbols)} definitions differ.")
        missing = seam.differences(new)
    for said in missing:
        print(f"{args.new} {said}.")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
