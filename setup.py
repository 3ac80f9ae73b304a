"""Builds the native libraries with CMake and puts them into the wheel.

They are built against the torch that is installed, and never ask what this machine's CPU can do:
every instruction set is compiled in, and chosen when the library is loaded.

`pip install .` builds in an environment of its own, which has CMake but not torch, so torch's
headers are looked for where they will be needed: in the environment that asked for the build.
TORCH_ROOT names the folder of a torch package, or several with `:` between them, instead.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent.resolve()
SUPPORTED = ((2, 13), (2, 15))  # as in pyproject.toml
SPACE_MB = 200  # what the objects of a build take, and some more
# By what the host's own CPU build is told which instruction sets to compile.
HOST_FLAG = re.compile(r"VLLM_CPU_(DISABLE_AVX512|AVX2|AVX512\w*|AMXBF16|ARM_BF16)")


def fail(sentence: str) -> NoReturn:
    """End the build with one sentence."""
    sys.exit(f"cpu_backend: {sentence}")


def pythons() -> Iterator[str]:
    """The Pythons that may have asked for this build, the likeliest first.

    pip runs the build by its own Python and hides what is installed there.  uv runs it by a Python
    of its own making, sets VIRTUAL_ENV to that, and tells in no variable where the package goes.
    """
    yield sys.executable
    try:
        caller = Path(f"/proc/{os.getppid()}/environ").read_text(errors="replace").split("\0")
    except OSError:
        caller = []
    variables = dict(text.split("=", 1) for text in caller if "=" in text)
    active = (variables.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX"))
    nearby = (f"{folder}/.venv" for folder in (os.environ.get("PWD", "."), ROOT))
    for prefix in (*filter(None, active), *nearby):
        yield f"{prefix}/bin/python"
    for folder in os.get_exec_path():
        for name in ("python", "python3"):
            yield f"{folder}/{name}"


def torch_of(python: str) -> Path | None:
    """The folder of the torch that this Python would import, packages of its user included."""
    code = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"
    try:
        done = subprocess.run(
            [python, "-E", "-c", code], cwd="/", capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    origin = done.stdout.strip()
    return Path(origin).parent if done.returncode == 0 and origin else None


def find_torch() -> list[Path]:
    """The folders of torch to build against: those that are named, else the installed one."""
    if named := os.environ.get("TORCH_ROOT"):
        return [Path(folder).absolute() for folder in named.split(os.pathsep)]
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin:
        return [Path(spec.origin).parent]
    for python in dict.fromkeys(pythons()):
        if (found := torch_of(python)) is not None:
            return [found]
    fail(
        "it is built for the torch it will run with, and none was found: install torch first (pip "
        "install torch==2.13.0), run `pip install --no-build-isolation .` by the Python that has "
        "it, or set TORCH_ROOT to the folder of its package."
    )


def check_torch(root: Path) -> None:
    """End the build where this is no torch, or none that is served."""
    version = root / "version.py"
    if not version.is_file() or not (root / "include" / "ATen").is_dir():
        fail(
            f"{root} has no version.py and include/ATen: name by TORCH_ROOT the folder of a torch "
            "package, such as .venv/lib/python3.11/site-packages/torch."
        )
    values: dict[str, str] = {}
    exec(version.read_text(), values)
    found = values["__version__"]
    if not SUPPORTED[0] <= tuple(map(int, found.split(".")[:2])) < SUPPORTED[1]:
        lowest, end = (".".join(map(str, bound)) for bound in SUPPORTED)
        fail(f"torch {found} in {root} is not served: install torch >= {lowest} and < {end}.")
    print(f"cpu_backend: built for torch {found} in {root}")


def check_machine() -> None:
    """What would end a build halfway, said before it begins."""
    if sys.maxsize < 2**32:
        fail("this Python has 32 bits, and torch runs on none such: use a Python of 64 bits.")
    if not os.access(ROOT, os.W_OK):
        fail(f"the build needs to write into {ROOT}: copy the sources to a folder of yours.")
    if given := sorted(filter(HOST_FLAG.fullmatch, os.environ)):
        print(
            f"cpu_backend: {', '.join(given)}: not needed, because every instruction set is in the "
            "library and the best one is chosen at start; CPU_BACKEND_ISA=avx2, say, names another."
        )


def run_cmake(*arguments: str) -> None:
    """In the folder of the build, which is not the one of setuptools: that is a new one at every
    `pip install -e`, and what was compiled for an earlier installation is not compiled again."""
    # For another CPU, which a toolchain file names, in one of its own.
    toolchain = Path(os.environ.get("CMAKE_TOOLCHAIN_FILE", "")).stem
    folder = ROOT / "build" / toolchain / "library"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cmake", *arguments], cwd=folder, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        explain_failure(ROOT)


def explain_failure(sources: Path) -> None:
    """End a build whose compiler has just said why it failed, or could not."""
    for folder in (sources, Path(tempfile.gettempdir())):
        if (free := shutil.disk_usage(folder).free >> 20) < SPACE_MB:
            fail(f"the build failed, and only {free} MB are free in {folder}: it needs {SPACE_MB}.")
    if not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
        fail("no C++ compiler was found: install g++ 11 or clang++ 14 or later, or set CXX.")
    fail("the build failed; the first error above says why.")


class CMakeBuild(build_ext):
    """One extension, one CMake build, whose libraries lie beside the Python files."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", os.sep) + ".so"

    def build_extension(self, ext: Extension) -> None:
        roots = find_torch()
        for root in roots:
            check_torch(root)
        settings = [
            f"-DTORCH_ROOT={';'.join(map(str, roots))}",
            # The one that an earlier build noted went with that build's environment.
            f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}",
        ]
        run_cmake(str(ROOT), "-G", "Ninja", *settings)
        run_cmake("--build", ".", "--target", "cpu_backend_ops")
        self.install(Path(self.get_ext_fullpath(ext.name)).resolve().parent)

    def copy_extensions_to_source(self) -> None:
        """`pip install -e`: beside the Python files there, all of them."""
        self.install(ROOT / "src" / "cpu_backend")

    def install(self, folder: Path) -> None:
        """Put them into the folder, in place of all that an earlier build has left there."""
        for old in folder.glob("_*.so"):
            old.unlink()
        run_cmake("--install", ".", "--prefix", str(folder))


class PresentModules(build_py):
    """Those of the sources alone: setuptools keeps its folder, and in it what an older version had,
    whose changes of the host would still be made."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib) / "cpu_backend", ignore_errors=True)
        super().run()


class PlatformWheel(bdist_wheel):
    """The libraries use no Python API: one wheel serves every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


if __name__ == "__main__":
    check_machine()
    setup(
        ext_modules=[Extension("cpu_backend._kernels", [])],
        cmdclass={
            "build_py": PresentModules,
            "build_ext": CMakeBuild,
            "bdist_wheel": PlatformWheel,
        },
    )
