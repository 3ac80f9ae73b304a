"""The plugin that is installed is the one that runs, whatever lies in the current folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cpu_backend
from tests.conftest import mostly_slow
from tests.e2e.server import Server

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
INSTALLED = Path(cpu_backend.__file__)
FOLDERS = ("clone", "older clone", "empty folder")


def make_folder(name: str, base: Path) -> Path:
    """Where a command is given."""
    if name == "clone":
        return ROOT
    target = base / name
    target.mkdir()
    if name == "older clone":  # its package lay at the top, without a library
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(INSTALLED.parent, target / "cpu_backend", ignore=ignored)
    return target


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One where the host has stored nothing about models it has seen."""
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return path


def run(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command, env = [sys.executable, *arguments], {**os.environ, **environ}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    ("name", "start"),
    mostly_slow(
        [(name, start) for name in FOLDERS for start in ("here", "fork", "spawn")],
        ("clone", "here"),
        ("older clone", "spawn"),
        ("empty folder", "fork"),
    ),
)
@pytest.mark.usefixtures("home")
def test_host_finds_the_installed_plugin(
    name: str, start: str, model_path: str, tmp_path: Path
) -> None:
    method = [] if start == "here" else [start]
    folder = make_folder(name, tmp_path)
    done = run(folder, "-m", "inspecting", model_path, *method, **on_path(HERE))
    assert done.returncode == 0, done.stderr
    seen = done.stdout.splitlines()[-1]
    assert seen == f"CpuBackendPlatform LlamaForCausalLM {INSTALLED}"


def on_path(folder: Path) -> dict[str, str]:
    """The environment in which Python finds modules of this folder, too."""
    known = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{known}" if known else str(folder)}


@pytest.mark.parametrize("name", FOLDERS)
def test_info(name: str, tmp_path: Path) -> None:
    done = run(make_folder(name, tmp_path), "-m", "cpu_backend.info")
    if name == "older clone":
        # Python itself takes that folder's module; it says what it lacks.
        assert done.returncode != 0
        assert "installed without its native library" in done.stdout + done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert "instruction set" in done.stdout


@pytest.mark.parametrize(
    ("name", "method", "program"),
    mostly_slow(
        [
            ("older clone", "spawn", "-m"),
            ("older clone", "fork", "-m"),
            ("older clone", "spawn", "vllm"),
            ("empty folder", "fork", "-m"),
        ],
        ("older clone", "spawn", "-m"),
    ),
)
@pytest.mark.usefixtures("home")
def test_server(name: str, method: str, program: str, model_path: str, tmp_path: Path) -> None:
    """With a blank in the folder's path; the other tests start theirs in the clone."""
    server = Server(model_path, tmp_path / "log", "--max-model-len", "512")
    server.environ = {"VLLM_WORKER_MULTIPROC_METHOD": method}
    server.folder = make_folder(name, tmp_path)
    if program == "-m":
        server.program = [sys.executable, "-m", "vllm.entrypoints.cli.main"]
    with server:
        assert len(server.tokens([504, 3575, 282, 4649, 314])) == 12
        assert "cpu_backend: instruction set" in server.log()
