"""Why the engine did not start, told by the process that knows to the one that people look at.

The engine and its ranks are processes of their own.  The first of them that fails leaves its
sentence in a file of the temporary directory named after the server, and ends without a traceback;
the server raises that sentence.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cpu_backend import envs
from cpu_backend.errors import ConfigError
from cpu_backend.serving import engine_calls, heartbeat
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


def end_with_a_sentence(owner: Any, then: Any = None) -> None:
    """A constructor of the host that runs in a process of the engine: what makes it fail is left
    for the server.  ``then(self)`` runs when it has succeeded."""
    original = owner.__init__

    @functools.wraps(original)
    def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, vllm_config, *args, **kwargs)
        except Exception as error:
            server = vllm_config.instance_id
            is_usual = isinstance(error, (ConfigError, *usual_kinds()))
            # An engine whose rank has left a sentence fails for that reason, whatever it says.
            if envs.wants_traceback() or not (is_usual or _note(server).exists()):
                raise
            leave(server, sentence(error) + ("" if isinstance(error, ConfigError) else HINT))
            raise SystemExit(1) from None
        if then is not None:
            then(self)

    owner.__init__ = init


def in_engine(module: Any) -> None:
    """vllm.v1.engine.core: the engine tells why it does not start, and that it lives."""
    end_with_a_sentence(module.EngineCoreProc, heartbeat.answer)
    heartbeat.count_time(module.EngineCoreProc)
    engine_calls.check_results(module.EngineCoreProc)
    engine_calls.check_steps(module.EngineCore)


def in_rank(module: Any) -> None:
    """vllm.v1.executor.multiproc_executor: each rank tells why it does not start."""
    end_with_a_sentence(module.WorkerProc)


def in_server(module: Any) -> None:
    """vllm.v1.engine.utils: the server passes on what its engines told."""
    original = module.launch_core_engines

    @contextlib.contextmanager
    def launch_core_engines(vllm_config: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        launched = None
        try:
            with original(vllm_config, *args, **kwargs) as launched:
                yield launched
        except Exception:
            said = take(vllm_config.instance_id) or _killed(launched)
            if said and not envs.wants_traceback():
                raise ConfigError(said) from None
            raise

    module.launch_core_engines = launch_core_engines


def _killed(launched: Any) -> str:
    """How an engine ended that could not say anything itself."""
    manager = getattr(launched, "engine_manager", None)
    finished: dict[str, int] = manager.finished_procs() if manager is not None else {}
    codes = [code for code in finished.values() if code < 0]
    return how_it_ended(codes[0]) if codes else ""
