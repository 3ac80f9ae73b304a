"""The folder of the torch of one version that a library can be built against.

That is the installed one if it has this version.  Else headers and version are taken out of the
wheel on the index, most of which a build does not need, and kept in the user's cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path


def find(version: str, options: list[str]) -> Path:
    """``options`` go to ``pip download``.  Raises OSError, CalledProcessError or BadZipFile."""
    return installed(version) or cached(version, options)


def installed(version: str) -> Path | None:
    """The folder of the installed torch if it is this one, whatever device it is built for."""
    try:
        found = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return None
    return Path(str(found.locate_file("torch"))) if matches(found.version, version) else None


def matches(found: str, version: str) -> bool:
    """2.13.0+cpu has the headers of 2.13.0."""
    return found.partition("+")[0] == version


def cached(version: str, options: list[str]) -> Path:
    """The folder of its headers in the cache, where they are put if they are not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cpu_backend"
    folder = cache / f"torch_headers_{version}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            download(version, options, Path(work))
            os.rename(Path(work) / "headers", folder)  # whole, or not at all
    return folder / "torch"


def download(version: str, options: list[str], work: Path) -> None:
    """Unpack what is needed of the wheel to ``work/headers``."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, *options, f"torch=={version}"], cwd=work, check=True)
    [wheel] = work.glob("torch-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name == "torch/version.py" or name.startswith("torch/include/"):
                archive.extract(name, work / "headers")
