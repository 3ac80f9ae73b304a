"""Why the engine did not start, told by the process that knows to the one that people look at.

The engine and its ranks are processes of their own.  The first of them that fails leaves its
sentence in a file of the temporary directory named after the server, and ends without a traceback;
the server raises that sentence.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from cpu_backend import envs
from cpu_backend.errors import ConfigError
from cpu_backend.serving.engine_end import how_it_ended
from cpu_backend.serving.sentences import sentence, usual_kinds

HINT = " (CPU_BACKEND_TRACEBACK=1 shows where)"


def _note(server: str) -> Path:
    return Path(tempfile.gettempdir()) / f"cpu_backend-{server}.error"


def leave(server: str, said: str) -> None:
    """Keep the sentence for the server, unless another process was first."""
    with contextlib.suppress(OSError), _note(server).open("x") as file:
        file.write(said)


def take(server: str) -> str:
    """The sentence that a process of the server has left; empty when there is none."""
    try:
        said = _note(server).read_text()
        _note(server).unlink()
    except OSError:
        return ""
    return said


@contextlib.contextmanager
def left_for(server: str) -> Iterator[None]:
    """Around what an engine or a rank does to start: what makes it fail is left for the server."""
    try:
        yield
    except Exception as error:
        is_usual = isinstance(error, (ConfigError, *usual_kinds()))
        # An engine whose rank has left a sentence fails for that reason, whatever it says.
        if envs.wants_traceback() or not (is_usual or _note(server).exists()):
            raise
        leave(server, sentence(error) + ("" if isinstance(error, ConfigError) else HINT))
        raise SystemExit(1) from None


@contextlib.contextmanager
def taken_from(server: str, exit_codes: Callable[[], list[int]]) -> Iterator[None]:
    """Around what the server does to start its engines: raises ConfigError with what they left, or
    with how one was killed that could not say anything itself."""
    try:
        yield
    except Exception:
        said = take(server) or next((how_it_ended(c) for c in exit_codes() if c < 0), "")
        if said and not envs.wants_traceback():
            raise ConfigError(said) from None
        raise
