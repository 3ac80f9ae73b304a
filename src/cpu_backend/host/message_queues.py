"""A message queue's shared memory leaves /dev/shm as soon as all readers have mapped it.

What: ``wait_until_ready`` unlinks it; it lives on in the processes that use it.
Why: a killed server leaves its queues behind.
Since: 0.32
Until: the host unlinks them.
"""

from __future__ import annotations

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
