"""The executor of one rank.

The host's in-process executor: model and scheduler share a process, so a step is a function call
and not a message.  The in-tree CPU code takes the multi-process executor even for one rank, because
it can only bind threads through environment variables of a new process; this project binds them in
process (:mod:`cpu_backend.worker.worker`).  Several ranks use the host's multi-process executor.
"""

from __future__ import annotations

from vllm.v1.executor.uniproc_executor import UniProcExecutor

from cpu_backend.worker.media_ahead import MediaAhead


class CPUExecutor(UniProcExecutor):
    """One rank, computed by the engine's own process."""

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """The step runs on the caller's thread; there is nothing to schedule beside it."""
        return False

    def media_ahead(self) -> MediaAhead | None:
        """Where the model's media are encoded between steps."""
        ahead: MediaAhead | None = self.driver_worker.worker.model_runner.media_ahead
        return ahead
