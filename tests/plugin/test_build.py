"""setup.py: which torch a build takes, and what ends one before it begins.

A torch of an unknown version ends it with a sentence that names its folder: so nothing is compiled
here, and what was found is told apart.
"""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import setuptools

ROOT = Path(__file__).resolve().parents[2]
SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def add_torch(site: Path, version: str = "2.99.0") -> Path:
    """What a build looks at of an installed torch."""
    package = site / "torch"
    (package / "include" / "ATen").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "version.py").write_text(f"__version__ = '{version}'\n")
    return package


def add_environment(prefix: Path) -> Path:
    """A virtual environment with such a torch."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    return add_torch(prefix / SITE)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The sources as far as setup.py reads them, in a folder with a blank in its name."""
    folder = tmp_path / "the sources"
    folder.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    (folder / "src" / "cpu_backend").mkdir(parents=True)
    shutil.copy(ROOT / "src" / "cpu_backend" / "__init__.py", folder / "src" / "cpu_backend")
    (folder / "src" / "vllm_cpu_backend.py").touch()
    return folder


@pytest.fixture
def isolated(tmp_path: Path) -> dict[str, str]:
    """The environment of a build by pip: setuptools, and nothing of what is installed."""
    packages = tmp_path / "requirements"
    packages.mkdir()
    for pattern in ("*setuptools*", "_distutils_hack"):
        for path in Path(setuptools.__file__).parents[1].glob(pattern):
            (packages / path.name).symlink_to(path)
    return {"PYTHONPATH": str(packages), "PATH": "/nowhere"}


# A process that starts another with this environment.
CALLER = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[2:], env=eval(sys.argv[1])))"


def build(
    tree: Path, environ: dict[str, str], python: Path | str, caller: dict[str, str] | None = None
) -> str:
    """What the build says at its end; ``caller`` is the environment of the process above it."""
    command = [str(python), "setup.py", "-q", "build_ext", "--build-lib", "built"]
    if caller is not None:
        command = [sys.executable, "-c", CALLER, repr(environ), *command]
        environ = caller
    done = subprocess.run(command, cwd=tree, env=environ, capture_output=True, text=True)
    assert done.returncode != 0
    return done.stderr.strip().splitlines()[-1]


def not_served(torch: Path) -> str:
    return f"cpu_backend: torch 2.99.0 in {torch} is not served: install torch >= 2.13 and < 2.15."


def test_pip_takes_the_torch_of_its_own_python(
    tree: Path, isolated: dict[str, str], tmp_path: Path
) -> None:
    torch = add_environment(tmp_path / "an environment")
    python = tmp_path / "an environment" / "bin" / "python"
    assert build(tree, isolated, python) == not_served(torch)


@pytest.mark.parametrize("how", ["VIRTUAL_ENV", "CONDA_PREFIX", "PATH", ".venv", "TORCH_ROOT"])
def test_uv_takes_the_torch_of_the_environment_it_was_started_for(
    tree: Path, isolated: dict[str, str], tmp_path: Path, how: str
) -> None:
    prefix = tree / ".venv" if how == ".venv" else tmp_path / "an environment"
    torch = add_environment(prefix)
    of_build = tmp_path / "made by uv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", of_build], check=True)
    caller = dict(isolated)
    if how in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        caller[how] = str(prefix)
    elif how == "PATH":
        isolated["PATH"] = f"{of_build}/bin:{prefix}/bin"
    elif how == "TORCH_ROOT":
        isolated[how] = str(torch)
    isolated["VIRTUAL_ENV"] = str(of_build)
    assert build(tree, isolated, of_build / "bin" / "python", caller) == not_served(torch)


def test_without_torch_a_build_says_how_to_name_one(
    tree: Path, isolated: dict[str, str], tmp_path: Path
) -> None:
    prefix = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    said = build(tree, isolated, prefix / "bin" / "python")
    assert said.startswith("cpu_backend: it is built for the torch it will run with, and none was")
    assert "--no-build-isolation" in said
    assert "TORCH_ROOT" in said


def test_a_folder_that_is_no_torch_is_refused(tree: Path, isolated: dict[str, str]) -> None:
    isolated["TORCH_ROOT"] = str(tree)
    said = build(tree, isolated, sys.executable)
    assert said.startswith(f"cpu_backend: {tree} has no version.py and include/ATen: name")


@pytest.mark.needs("root", "setpriv")
def test_modules_of_an_older_version_are_left_out(tree: Path) -> None:
    old = tree / "built" / "cpu_backend" / "host" / "old.py"
    old.parent.mkdir(parents=True)
    old.touch()
    command = [sys.executable, "setup.py", "build_py", "--build-lib", "built"]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    assert not old.exists()
    assert (tree / "built" / "cpu_backend" / "__init__.py").is_file()


def test_sources_that_cannot_be_written_are_refused(tree: Path, isolated: dict[str, str]) -> None:
    tree.chmod(0o555)
    command = [shutil.which("setpriv") or "", "--bounding-set", "-dac_override"]  # heeds modes
    command += [sys.executable, "setup.py", "--version"]
    done = subprocess.run(command, cwd=tree, env=isolated, capture_output=True, text=True)
    tree.chmod(0o755)
    said = f"cpu_backend: the build needs to write into {tree}: copy the sources to a folder"
    assert done.stderr.startswith(said), done.stderr


@pytest.fixture
def names() -> dict[str, object]:
    """The functions of setup.py."""
    return runpy.run_path(str(ROOT / "setup.py"))


def test_python_of_32_bits_is_refused(
    names: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "maxsize", 2**31 - 1)
    with pytest.raises(SystemExit, match=r"this Python has 32 bits, .*: use a Python of 64 bits"):
        names["check_machine"]()  # type: ignore[operator]


def test_flags_of_the_hosts_own_build_are_answered(
    names: dict[str, object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names["check_machine"]()  # type: ignore[operator]
    assert capsys.readouterr().out == ""
    for name in ("VLLM_CPU_DISABLE_AVX512", "VLLM_CPU_AVX512BF16", "VLLM_CPU_KVCACHE_SPACE"):
        monkeypatch.setenv(name, "1")
    names["check_machine"]()  # type: ignore[operator]
    said = capsys.readouterr().out
    assert said.startswith("cpu_backend: VLLM_CPU_AVX512BF16, VLLM_CPU_DISABLE_AVX512: not needed,")
    assert "CPU_BACKEND_ISA" in said


def test_a_failed_build_on_a_full_disk_names_the_disk(
    names: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(0, 0, 7 << 20))
    with pytest.raises(SystemExit, match=rf"only 7 MB are free in {tmp_path}: it needs \d+"):
        names["explain_failure"](tmp_path)  # type: ignore[operator]
