"""A result that cannot be sent, of /collective_rpc for example, fails its own call.

What: ``_invoke_utility_method`` encodes the result before it is queued.
Why: the host finds out in the thread that sends everything, which ends: all requests would wait for
    ever.
Since: 0.32
Until: it looks before.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cpu_backend.host.seam import patch


@patch(
    "vllm.v1.engine.core",
    "EngineCoreProc._invoke_utility_method(name, get_result, output, enqueue_output)",
)
def invoke(original: Any) -> Any:
    """What fails is the call."""
    from vllm.v1.serial_utils import MsgpackEncoder, UtilityResult

    def invoke_utility_method(name: str, get_result: Callable[[], Any], *output: Any) -> None:
        def get_sendable() -> Any:
            result = get_result()
            if not isinstance(result, Future):  # whose own result comes here in turn
                MsgpackEncoder().encode(UtilityResult(result))
            return result

        original(name, get_sendable, *output)

    return invoke_utility_method
