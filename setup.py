"""Builds the native library with CMake and puts it into the wheel.

The library is built against the torch that is installed, and never asks what this machine's CPU
can do: every instruction set is compiled in, and chosen when the library is loaded.
"""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()


class CMakeBuild(build_ext):
    """One extension, one CMake build."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", os.sep) + ".so"

    def build_extension(self, ext: Extension) -> None:
        try:
            import torch
        except ImportError:
            sys.exit(
                "cpu_backend is built against the torch it will run with: install torch first "
                "(pip install torch==2.13.0) and use `pip install --no-build-isolation .`"
            )
        # Not build_temp, which is a new folder at every `pip install -e`: what has been compiled
        # for the wheel or an earlier installation is not compiled again.
        build = ROOT / "build" / "library"
        target = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        build.mkdir(parents=True, exist_ok=True)
        configure = [
            "cmake",
            str(ROOT),
            "-G",
            "Ninja",
            f"-DTORCH_ROOT={Path(torch.__file__).parent}",
            f"-DTORCH_VERSION={torch.__version__.partition('+')[0]}",
        ]
        subprocess.run(configure, cwd=build, check=True)
        subprocess.run(
            ["cmake", "--build", ".", "--target", "cpu_backend_ops"], cwd=build, check=True
        )
        subprocess.run(["cmake", "--install", ".", "--prefix", str(target)], cwd=build, check=True)


class PlatformWheel(bdist_wheel):
    """The library uses no Python API: one wheel serves every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(
    ext_modules=[Extension("cpu_backend._ops", [])],
    cmdclass={"build_ext": CMakeBuild, "bdist_wheel": PlatformWheel},
)
