"""Ranks bind their own threads (worker/worker.py), for any layout.

What: nothing in the place of the host's ``OMPProcessManager``.
Why: the host binds ranks by variables of OpenMP, one whole NUMA node to each, or does not start.
Since: 0.32
Until: a hook of the platform.
"""

from __future__ import annotations

import contextlib
from typing import Any

from cpu_backend.host.seam import patch


class _NoVariables:
    def __init__(self, config: Any) -> None:
        del config

    def configure_omp_envs(self, rank: int, local_rank: int) -> contextlib.nullcontext[None]:
        del rank, local_rank
        return contextlib.nullcontext()


@patch("vllm.v1.executor.multiproc_executor", "OMPProcessManager")
def start_as_they_are(original: Any) -> Any:
    """Workers start without variables."""
    del original
    return _NoVariables
