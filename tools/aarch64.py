"""Makes a folder in which Python, torch and the host are those of an ARM server, for qemu to run.

    python -m tools.aarch64 FOLDER TORCH VLLM [PACKAGE...]

Debian's packages are fetched for its arm64 and unpacked; nothing is installed into this system.
torch is the aarch64 wheel of the index, a CUDA build whose CUDA libraries are replaced by stubs.
What the host needs has the versions that are installed here, so what is tried there is what is
tested here.  Each part that is there already, as its stamp says, stays.

FOLDER/usr/bin/python runs it all on an emulated Neoverse N1; QEMU_CPU names another CPU.
Needs apt, a cross compiler and qemu, on Debian 12 or any system with its apt sources.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from tools import cuda_stubs
from tools.package_list import package_list

PROJECT = Path(__file__).resolve().parents[1]
DEBIAN = ("python3.11", "libstdc++6", "libgomp1")
# As pip asks for them: what Debian 12 with its glibc 2.36 can run.
TAGS = [f"manylinux_2_{minor}_aarch64" for minor in (36, 35, 34, 31, 28, 27, 26, 17)]
CPU = "neoverse-n1"
PYTHON = f"""\
#!/bin/sh
# sys.executable is this file, so that Python's children are emulated, too.
root=${{0%/usr/bin/python}}
export QEMU_CPU=${{QEMU_CPU:-{CPU}}}
exec qemu-aarch64-static -L "$root" -0 "$0" "$root/usr/bin/python3.11" "$@"
"""
# Of a Neoverse N1 (Graviton2, Ampere Altra), for what reads files instead of asking the CPU.
MIDR = "0x00000000413fd0c1\n"
CPUINFO = """\
processor\t: {}
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc \
dcpop asimddp ssbs
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def packages(root: Path) -> Path:
    return root / "usr/local/lib/python3.11/dist-packages"


def system(root: Path) -> None:
    """Debian's Python and what it needs, and what the kernel would say of the CPU."""
    state = root.parent / "apt"
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::State": state / "state",
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
    }
    apt = ("apt-get", "-q", *(f"-o{name}={value}" for name, value in settings.items()))
    run(*apt, "update")
    run(*apt, "install", "-y", "--download-only", "--no-install-recommends", *DEBIAN)
    for package in (state / "cache/archives").glob("*.deb"):
        run("dpkg", "-x", package, root)
    shutil.rmtree(state)
    describe_cpu(root)
    packages(root).mkdir(parents=True, exist_ok=True)
    wrapper = root / "usr/bin/python"
    wrapper.write_text(PYTHON)
    wrapper.chmod(0o755)


def describe_cpu(root: Path) -> None:
    """Writes under ``root`` what the kernel of an ARM server would say in /proc and /sys."""
    cpus = range(os.cpu_count() or 1)
    for cpu in cpus:
        registers = root / f"sys/devices/system/cpu/cpu{cpu}/regs/identification"
        registers.mkdir(parents=True, exist_ok=True)
        (registers / "midr_el1").write_text(MIDR)
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/cpuinfo").write_text("".join(map(CPUINFO.format, cpus)))


def install(root: Path, *what: str | Path) -> None:
    """Wheels of the index for this CPU, with nothing that they ask for."""
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade")
    tags = (f"--platform={tag}" for tag in (*TAGS, "any"))
    python = ("--python-version=311", "--only-binary=:all:", "--target", packages(root))
    run(*pip, *tags, *python, *what)


def install_torch(root: Path, version: str) -> None:
    install(root, f"torch=={version}")
    cuda_stubs.make(packages(root) / "torch/lib", root=root, compiler="aarch64-linux-gnu-gcc")


def as_installed(names: Iterable[str]) -> Iterator[str]:
    """``name==version`` of these and of all they ask for on ARM, less torch and what is missing."""
    seen = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        asked = waiting.pop()
        name = re.sub(r"[-_.]+", "-", asked.name).lower()
        if name in ("torch", "triton") or (name, frozenset(asked.extras)) in seen:
            continue
        seen.add((name, frozenset(asked.extras)))
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        yield f"{name}=={found.version}"
        for requirement in map(Requirement, found.requires or []):
            marker = requirement.marker
            extras = ("", *asked.extras)
            machine = {"platform_machine": "aarch64"}
            if marker is None or any(marker.evaluate(machine | {"extra": e}) for e in extras):
                waiting.append(requirement)


def requirements(root: Path) -> list[str]:
    """What the host and torch ask for, and what the tests do."""
    named = package_list(PROJECT / "requirements/host.txt")
    torch = metadata.distributions(name="torch", path=[str(packages(root))])
    named += [r for d in torch for r in d.requires or [] if ";" not in r]
    return sorted(set(as_installed([*named, "pytest", "pytest-timeout", "gguf", "httpx"])))


def once(stamp: Path, value: str, make: Callable[[], None]) -> None:
    """Unless it was done for this value."""
    if not stamp.is_file() or stamp.read_text() != value:
        print(f"aarch64: {stamp.name} {value}".rstrip(), flush=True)
        make()
        stamp.write_text(value)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.aarch64")
    parser.add_argument("folder", type=Path)
    parser.add_argument("torch", help="its version")
    parser.add_argument("vllm", help="its version")
    parser.add_argument("wheels", nargs="*", type=Path, help="to install beside them")
    options = parser.parse_args()
    root, stamps = options.folder.absolute(), options.folder.absolute() / "stamps"
    stamps.mkdir(parents=True, exist_ok=True)
    try:
        once(stamps / "system", " ".join(DEBIAN), lambda: system(root))
        once(stamps / "torch", options.torch, lambda: install_torch(root, options.torch))
        needed = requirements(root)
        once(stamps / "requirements", " ".join(needed), lambda: install(root, *needed))
        once(stamps / "vllm", options.vllm, lambda: install(root, f"vllm=={options.vllm}"))
        for wheel in options.wheels:
            install(root, wheel)
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(map(str, error.cmd[:4]))} … failed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
