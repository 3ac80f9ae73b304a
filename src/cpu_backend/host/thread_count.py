"""The worker alone sizes torch's thread pool.

What: ``torch.set_num_threads`` does nothing in a worker, nor does what the host would set.
Why: the host sets one thread per worker; the pool is bound and sized when this happens.
Since: 0.32
Until: a hook of the platform.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, change


@change("vllm.v1.worker.gpu_worker", "set_torch_threads_for_runtime", when=When.COMPUTING)
def keep(module: Any) -> None:
    """From now on."""
    import torch

    def ignore(threads: int) -> None:
        del threads

    torch.set_num_threads = ignore
    module.set_torch_threads_for_runtime = lambda: None
