"""The model runner: the host's V1 runner on CPU tensors."""

from __future__ import annotations

import time

from vllm.logger import init_logger
from vllm.v1.worker.cpu_model_runner import CPUModelRunner as HostCPUModelRunner

logger = init_logger("vllm.cpu_backend")


class CPUModelRunner(HostCPUModelRunner):
    """The host's GPUModelRunner, by way of its thin CPU subclass, which replaces device buffers
    by their CPU twins and streams by nothing.  What this class adds is loading and warm-up."""

    def load_model(self, load_dummy_weights: bool = False) -> None:
        """Load and pack, and keep the time for the start-up line."""
        start = time.perf_counter()
        super().load_model(load_dummy_weights)
        self.load_seconds = time.perf_counter() - start

    def warm_up(self) -> float:
        """One small forward, so that the first request meets touched pages and started threads.

        Returns the seconds it took.
        """
        start = time.perf_counter()
        self._dummy_run(min(16, self.max_num_tokens), skip_eplb=True)
        return time.perf_counter() - start
