"""Other requests go on while a picture is encoded.

What: a request whose pictures, videos or sounds are not encoded stays in the queue, as one whose
encoded media come from another server does; worker/media_ahead.py encodes them between steps.
Why: the host encodes within a step, for which all requests wait, on a CPU tens of seconds.
Since: 0.30
Until: the host encodes beside its steps.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch


@patch("vllm.v1.engine.core", "EngineCore.__init__(self, vllm_config, executor_class, ...)")
def connect(original: Any) -> Any:
    """Scheduler and runner of one process know the same media."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        find = getattr(self.model_executor, "media_ahead", None)
        self.scheduler.media_ahead = find and find()

    return __init__


@patch(
    "vllm.v1.core.sched.scheduler",
    "Scheduler._ec_transfer_pending(self, request, num_computed_tokens)",
)
def pending(original: Any) -> Any:
    """The host asks whether media are on their way before it takes a request from the queue."""

    def _ec_transfer_pending(self: Any, request: Any, num_computed_tokens: int) -> bool:
        ahead = getattr(self, "media_ahead", None)
        if ahead is not None and request.mm_features:
            return bool(ahead.pending(request, num_computed_tokens))
        return bool(original(self, request, num_computed_tokens))

    return _ec_transfer_pending
