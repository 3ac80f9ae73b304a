"""Why the engine did not start, said by the server in one sentence.

What: engine and ranks leave their sentence for the server (serving/engine_start.py), and
    ``launch_core_engines`` raises it.
Why: the host shows the tracebacks of several processes, and the reason in none that people read.
Since: 0.32
Until: never: manners, not a defect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from cpu_backend.host.seam import patch
from cpu_backend.serving import engine_start


@patch("vllm.v1.engine.core", "EngineCoreProc.__init__(self, vllm_config, ...)")
def start_engine(original: Any) -> Any:
    """The engine leaves a sentence."""
    return _with_a_sentence(original)


@patch("vllm.v1.executor.multiproc_executor", "WorkerProc.__init__(self, vllm_config, ...)")
def start_rank(original: Any) -> Any:
    """Each rank does."""
    return _with_a_sentence(original)


def _with_a_sentence(original: Any) -> Any:
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        with engine_start.left_for(vllm_config.instance_id):
            original(self, vllm_config, *args, **kwargs)

    return __init__


@patch("vllm.v1.engine.utils", "launch_core_engines(vllm_config, ...)")
def launch(original: Any) -> Any:
    """The server passes on what its engines left, or how one was killed."""

    @contextlib.contextmanager
    def launch_core_engines(vllm_config: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        managers: list[Any] = []
        with (
            engine_start.taken_from(vllm_config.instance_id, lambda: _codes(managers)),
            original(vllm_config, *args, **kwargs) as launched,
        ):
            managers.append(launched.engine_manager)
            yield launched

    return launch_core_engines


def _codes(managers: list[Any]) -> list[int]:
    """Exit codes of the engines that have ended; several machines' engines have no manager here."""
    return [code for m in managers if m is not None for code in m.finished_procs().values()]
