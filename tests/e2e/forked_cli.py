"""``vllm ARGUMENTS`` many times in one process, forked anew for each after the imports.

Each run is what a person's would be from the first line of the command on: its own arguments,
environment, output and exit code.  The imports, most of the time of a start that fails, are shared.
As a script, ``python -m tests.e2e.forked_cli FILE`` reads a list of [program, arguments,
environment] and prints [exit code, output, errors] of each in a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.server import environment

SECONDS = 120  # of one run, on a busy machine
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    """How a run ended; -14 is the exit code of one that took too long."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The last line on the standard error; before it, a loader may show its progress."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        assert all(self._is_harmless(line) for line in lines[:-1]), self.err[-4000:]
        assert lines[-1].startswith("cpu_backend: "), lines[-1]
        return lines[-1].removeprefix("cpu_backend: ")

    @staticmethod
    def _is_harmless(line: str) -> bool:
        return "Loading safetensors" in line or "Warning: " in line or line.startswith("  ")


@dataclass(frozen=True)
class Run:
    """``vllm ARGUMENTS`` or, as program "server" or "LLM", the other two ways to start an engine:
    the module of the OpenAI server, and LLM with one keyword in JSON per argument."""

    arguments: tuple[str, ...]
    program: str = "vllm"
    environ: tuple[tuple[str, str], ...] = ()


def run_all(runs: list[Run], folder: Path) -> list[Done]:
    """Each of ``runs`` in turn."""
    todo = folder / "runs.json"
    todo.write_text(json.dumps([[r.program, r.arguments, dict(r.environ)] for r in runs]))
    command = [sys.executable, "-m", "tests.e2e.forked_cli", str(todo)]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
        timeout=SECONDS * (1 + len(runs)),
    )
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    return [Done(*json.loads(line)) for line in lines]


def main() -> None:
    """Imports what the programs do, and runs them."""
    import vllm.entrypoints.cli.main
    import vllm.entrypoints.cli.serve
    import vllm.entrypoints.llm
    import vllm.entrypoints.openai.api_server
    import vllm.v1.engine.async_llm  # noqa: F401

    for program, arguments, environ in json.loads(Path(sys.argv[1]).read_text()):
        print(json.dumps(_fork(program, arguments, environ)), flush=True)


def _fork(program: str, arguments: list[str], environ: dict[str, str]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            os.environ.update(environ)
            signal.alarm(SECONDS)
            os.setsid()
            os._exit(_run(program, arguments))
        _, status = os.waitpid(pid, 0)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return os.waitstatus_to_exitcode(status), texts[0], texts[1]


def _run(program: str, arguments: list[str]) -> int:
    """The interpreter's own end of a program: its exit code after an error was printed."""
    sys.argv = [program, *arguments]
    try:
        _start(program, arguments)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _start(program: str, arguments: list[str]) -> None:
    if program == "vllm":
        from vllm.entrypoints.cli.main import main as start

        start()
    elif program == "server":
        from vllm.entrypoints.launchers.api_server.entry import main as serve

        serve()
    else:
        from vllm import LLM

        LLM(**{name: json.loads(value) for name, _, value in (a.partition("=") for a in arguments)})


if __name__ == "__main__":
    main()
