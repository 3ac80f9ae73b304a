"""``python -m tools.cuda_stubs ENVIRONMENT``: a CUDA build of torch loads without CUDA's libraries.

The usual index has torch as a CUDA build, which asks for gigabytes of libraries that a CPU never
calls.  In their place come small ones in torch's own folder, of the same names, which define every
symbol that torch would look up in them, and say of every call that there is no GPU.  torch's
metadata no longer ask for CUDA's packages and Triton, which pip would install with the next package
that needs torch.  ``--package FOLDER`` makes them in the folder of a package that was built for a
CUDA build of torch (torchvision) and stands beside any; LD_LIBRARY_PATH must name the folder.  For
images and environments of tests.  ``--root`` and ``--compiler`` make them
for another CPU's torch, which has its system's libraries under a root folder.

Needs gcc and binutils.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SYMBOL = re.compile(
    r"^(__)?(cu|nv|nccl|cudnn|cublas|cufft|curand|cusolver|cusparse)[A-Za-z_]\w*$"
    r"|^_ZN?K?(2at|3c10)4cuda"  # of torch's own libraries for CUDA
)
PACKAGE = re.compile(r"^Requires-Dist: (cuda-|nvidia-|triton\b).*\n", re.MULTILINE)
# Those that give a text and no number.
TEXT = re.compile(
    r"^((cuda|cudnn|cublas|cusparse|nccl|nvrtc)Get(Error|Status)(String|Name)|ncclGetLastError)$"
)
NO_DEVICE = 100  # in the numbers of CUDA's driver and of its run-time library


def run(*command: str) -> str:
    """What the command prints.  CalledProcessError if it fails."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed(library: Path) -> set[str]:
    """The libraries that this one asks for."""
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", str(library))))


def symbols(library: Path, kind: str) -> set[tuple[str, str]]:
    """(name, version or "") of dynamic symbols; ``kind``: "undefined" or "defined"."""
    lines = run("nm", "-D", f"--{kind}-only", str(library)).splitlines()
    found = (line.split()[-1].partition("@") for line in lines if line.strip())
    return {(name, version.lstrip("@")) for name, _, version in found}


def is_missing(name: str) -> bool:
    """Whether the system has no library of that name."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return name in str(error)
    return False


def function(name: str) -> str:
    """Its definition in C."""
    if TEXT.match(name):
        return f'const char* {name}(void) {{ return "no GPU: CUDA is a stub here"; }}'
    return f"int {name}(void) {{ return {NO_DEVICE}; }}"


def make(
    folder: Path, beside: Path | None = None, root: Path | None = None, compiler: str = "gcc"
) -> list[str]:
    """Put what the libraries in ``folder`` miss there.  They find those in ``beside``, those that
    their wheel brought in FOLDER.libs, and the system's here or under ``root``."""
    own = _libraries(folder)
    present = own + (_libraries(beside) if beside else [])
    brought = _libraries(folder.with_name(f"{folder.name}.libs"))
    asked = set().union(*map(needed, own)) - {path.name for path in present + brought}
    if root is None:
        missing = sorted(filter(is_missing, asked))
    else:
        missing = sorted(asked - {path.name for path in root.rglob("*.so*")})
    defined = {name for path in present for name, _ in symbols(path, "defined")}
    versions: dict[str, list[str]] = {}
    for name, version in sorted(set().union(*(symbols(path, "undefined") for path in own))):
        if SYMBOL.match(name) and name not in defined:
            versions.setdefault(version, []).append(name)
    with tempfile.TemporaryDirectory() as build:
        source, script = Path(build) / "stubs.c", Path(build) / "versions"
        functions = map(function, itertools.chain(*versions.values()))
        source.write_text("\n".join(functions))
        # The loader insists on the versions that torch's libraries name.
        nodes = [f"{v} {{ {'; '.join(n)}; }};" for v, n in versions.items() if v]
        script.write_text("\n".join(nodes))
        options = ["-shared", "-nostdlib", *([f"-Wl,--version-script={script}"] if nodes else [])]
        for name in missing:
            target = str(folder / name)
            run(compiler, *options, f"-Wl,-soname,{name}", "-o", target, str(source))
    return missing


def _libraries(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.so*") if not path.is_symlink()]


def ask_for_none(torch: Path) -> None:
    """Take what is for GPUs out of what ``torch`` requires."""
    [metadata] = torch.parent.glob("torch-*.dist-info/METADATA")
    metadata.write_text(PACKAGE.sub("", metadata.read_text()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.cuda_stubs", description=__doc__)
    parser.add_argument("environment", type=Path, help="folder of a virtual environment")
    parser.add_argument("--package", type=Path, metavar="FOLDER", help="make them for it instead")
    parser.add_argument("--root", type=Path, help="where the other CPU's system is unpacked")
    parser.add_argument("--compiler", default="gcc", help="the other CPU's: aarch64-linux-gnu-gcc")
    options = parser.parse_args()
    environment = options.environment
    found = list(environment.glob("lib/python3*/site-packages/torch"))
    if not found:
        sys.exit(
            f"error: there is no torch in {environment}: install it there first, with --no-deps."
        )
    libraries = found[0] / "lib"
    if options.package:
        made = make(options.package, libraries, compiler=options.compiler)
    else:
        ask_for_none(found[0])
        made = make(libraries, root=options.root, compiler=options.compiler)
    print("\n".join(made) or "nothing is missing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
