"""What processes talk through does not stay behind: shared memory leaves /dev/shm as soon as all
readers of a queue have mapped it, and other files that of temporary ones with the process that has
named them.

What: ``MessageQueue.wait_until_ready`` unlinks a queue's memory, which lives on in the processes
    that use it; what ``get_open_zmq_ipc_path`` and ``get_file_store_init_method`` name is removed.
Why: a killed server leaves its queues behind, and every server its sockets, as ZeroMQ removes only
    those that it has named itself; ranks that are told to end leave the file where they met.
Since: 0.32
Until: the host removes them.
"""

from __future__ import annotations

from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from cpu_backend.host.seam import patch


@patch("vllm.distributed.device_communicators.shm_broadcast", "MessageQueue.wait_until_ready(self)")
def wait(original: Any) -> Any:
    """The writer unlinks."""

    def wait_until_ready(self: Any) -> None:
        original(self)
        buffer = self.buffer
        if self._is_writer and buffer is not None and buffer.is_creator:
            buffer.shared_memory.unlink()
            buffer.is_creator = False  # or the host would unlink it again

    return wait_until_ready


@patch("vllm.utils.network_utils", "get_open_zmq_ipc_path()")
@patch("vllm.utils.network_utils", "get_file_store_init_method()")
def with_an_end(original: Any) -> Any:
    """By this process alone: its forks end before it."""

    def named() -> str:
        url: str = original()
        file = Path(url.partition("://")[2])
        Finalize(None, file.unlink, kwargs={"missing_ok": True}, exitpriority=0)
        return url

    return named
