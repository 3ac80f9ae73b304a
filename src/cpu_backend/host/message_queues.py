"""What processes talk through does not stay behind: shared memory leaves /dev/shm as soon as all
readers of a queue have mapped it, and sockets and files lie in a folder that goes with the first
process of a server.

What: ``MessageQueue.wait_until_ready`` unlinks a queue's memory, which lives on in the processes
    that use it; what ``get_open_zmq_ipc_path`` and ``get_file_store_init_method`` name lies in
    multiprocessing's own temporary folder, which a process shares with those that it starts.
Why: a killed server leaves its queues behind, and every server its sockets, as ZeroMQ removes only
    those that it has named itself, and the file where ranks met.  A process that has named them
    cannot remove them itself: after Ctrl-C the host ends engines before their last line.
Since: 0.32
Until: the host removes them.
"""

from __future__ import annotations

import os
import secrets
from multiprocessing.util import get_temp_dir
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
def in_own_folder(original: Any) -> Any:
    """With short names: the system allows a socket's path 107 characters."""

    def named() -> str:
        url: str = original()
        scheme = url.partition("://")[0]
        if scheme == "ipc" and "VLLM_RPC_BASE_PATH" in os.environ:
            return url  # in the folder that the user has named
        return f"{scheme}://{get_temp_dir()}/{secrets.token_hex(8)}"

    return named
