"""An installation that cannot work says so in one sentence."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import cpu_backend
from cpu_backend import native, ops
from cpu_backend.errors import ConfigError

OWN_LIBRARY = native.ops_library(torch.__version__)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process looks for the libraries; empty."""
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    return tmp_path


def load() -> native.Library:
    """As a process does that has not loaded them yet."""
    return ops.load.__wrapped__()


def compile_library(path: Path, source: str, *options: str | Path) -> None:
    """A shared library from a line of C++."""
    command = ["c++", "-shared", "-fPIC", "-o", path, *options, "-x", "c++", "-"]
    subprocess.run(command, input=source, text=True, check=True)


def test_torch_of_another_minor_names_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    minor = native.served()[-1]
    monkeypatch.setattr(torch, "__version__", "2.99.1+cpu")
    with pytest.raises(ConfigError, match=rf"{minor} and this is torch 2\.99\.1: .*=={minor}\.\*"):
        load()


def test_each_minor_has_its_library(folder: Path) -> None:
    for name in (native.KERNELS, "_ops_2_9.so", "_ops_2_14.so", "_ops_2_13.so", "_other.so"):
        (folder / name).touch()
    assert native.served() == ["2.9", "2.13", "2.14"]
    assert native.ops_library("2.13.1").name == "_ops_2_13.so"
    assert native.ops_library("2.14.0").name == "_ops_2_14.so"


def test_missing_library_says_how_to_get_it(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"without its native library: install its wheel again"):
        load()
    shutil.copy(OWN_LIBRARY, folder)
    with pytest.raises(ConfigError, match=r"without its native _kernels\.so: install"):
        load()


def test_library_of_an_older_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    built = cpu_backend.__version__
    monkeypatch.setattr(native, "__version__", "99.0")
    with pytest.raises(ConfigError, match=rf"Python files are version 99\.0 .*library is {built}:"):
        load()


def test_two_versions_at_once_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for version in (cpu_backend.__version__, "0.0.9"):
        record = tmp_path / f"vllm_cpu_backend-{version}.dist-info"
        record.mkdir()
        assert native.other_versions() == []
        (record / "METADATA").write_text(f"Name: vllm-cpu-backend\nVersion: {version}\n")
    [said] = native.other_versions()
    assert said.startswith(
        f"version {cpu_backend.__version__} in {native.FOLDER} is used, and 0.0.9"
    )
    assert "pip uninstall" in said


IN_THIS_FOLDER = """
import pathlib, sys
from cpu_backend import errors, native, ops
native.FOLDER = pathlib.Path(sys.argv[1])
try: ops.load()
except errors.ConfigError as error: print(error)
"""


def load_from(folder: Path) -> str:
    """What a new process says that finds its libraries there; nothing if they load."""
    command = [sys.executable, "-c", IN_THIS_FOLDER, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_libraries_load_from_any_folder(tmp_path: Path) -> None:
    folder = tmp_path / "with a blank"
    folder.mkdir()
    for path in native.FOLDER.glob("*.so"):
        shutil.copy(path, folder)
    assert load_from(folder) == ""


def test_libraries_of_two_builds_are_refused(tmp_path: Path) -> None:
    shutil.copy(OWN_LIBRARY, tmp_path)
    versions = tmp_path / "versions"
    versions.write_text("CPU_BACKEND_of_another_build { global: *; };")
    compile_library(
        tmp_path / native.KERNELS,
        "void nothing() {}",
        "-Wl,-soname,_kernels.so",
        f"-Wl,--version-script={versions}",
    )
    assert load_from(tmp_path).startswith(
        "cpu_backend is installed in part: its libraries are of two builds: install"
    )


def test_library_of_a_newer_system_names_what_is_missing(tmp_path: Path) -> None:
    """A real library that asks libm for a version that no libm has."""
    shutil.copy(native.FOLDER / native.KERNELS, tmp_path)
    (tmp_path / "stub").mkdir()
    versions = tmp_path / "versions"
    versions.write_text("GLIBC_9.99 { global: *; };")
    libm = tmp_path / "stub" / "libm.so.6"
    compile_library(
        libm,
        'extern "C" void newer() {}',
        "-Wl,-soname,libm.so.6",
        f"-Wl,--version-script={versions}",
        "-nostdlib",
    )
    source = 'extern "C" void newer(); void f() { newer(); }'
    (tmp_path / "caller.cpp").write_text(source)
    command = ["c++", "-shared", "-fPIC", "-nostdlib", "-o", str(tmp_path / OWN_LIBRARY.name)]
    subprocess.run([*command, tmp_path / "caller.cpp", libm], check=True)
    said = load_from(tmp_path)
    assert said.startswith(
        "cpu_backend was built on a newer system, whose glibc has GLIBC_9.99: install"
    )


def test_python_without_torch_gives_one_sentence(tmp_path: Path) -> None:
    """In an environment of its own, as where somebody takes another Python than vLLM's."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    shutil.copytree(native.FOLDER, tmp_path / "alone" / "cpu_backend")
    done = subprocess.run(
        [python, "-m", "cpu_backend.info"],
        env={"PYTHONPATH": str(tmp_path / "alone")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("cpu_backend: cpu_backend computes with torch, and this Python (")
    assert "no module torch:" in done.stderr
    assert len(done.stderr.splitlines()) == 1
