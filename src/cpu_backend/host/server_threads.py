"""The server's process leaves the CPUs on which its engines compute.

What: it steps aside once its engines have started, and a process that only schedules ranks does.
Why: HTTP and tokenizers would run among the compute threads.
Since: 0.32
Until: a hook of the platform.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch
from cpu_backend.runtime import threads
from cpu_backend.runtime.plan import Machine


@patch("vllm.v1.engine.core_client", "AsyncMPClient.__init__(self, vllm_config, ...)")
def connect(original: Any) -> Any:
    """The client's constructor waits for the engines."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        threads.step_aside(Machine.read())

    return __init__


@patch("vllm.v1.executor.multiproc_executor", "MultiprocExecutor._post_init_executor(self)")
def schedule(original: Any) -> Any:
    """The ranks have started."""

    def post_init(self: Any) -> None:
        original(self)
        threads.step_aside(Machine.read())

    return post_init
