"""One engine in a process of its own, called as the host's ``LLM`` is."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import TracebackType
from typing import Any

SECONDS = 600  # for one call, generous: a wedged engine must fail the test

_engine: Any = None  # in the process of the engine


class Offline:
    """``Offline(...).generate(...)`` is ``LLM(...).generate(...)`` in a fresh process."""

    def __init__(self, model: str, **options: Any) -> None:
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        self.start(model, **options)

    def start(self, model: str, **options: Any) -> None:
        """Another engine in the place of the one that runs, which saves the imports."""
        self._run(_start, model, options)

    def __enter__(self) -> Offline:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(_stop)
        self._pool.shutdown()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._run(_call, method, args, kwargs)

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._pool.submit(function, *args).result(SECONDS)


def _start(model: str, options: dict[str, Any]) -> None:
    global _engine
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "0.5")
    from vllm import LLM

    _stop()
    _engine = LLM(model, device="cpu", **options)


def _call(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return getattr(_engine, method)(*args, **kwargs)


def _stop() -> None:
    if _engine is not None:
        _engine.llm_engine.engine_core.shutdown()
