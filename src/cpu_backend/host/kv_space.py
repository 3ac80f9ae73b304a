"""The size of the KV cache: fractions in VLLM_CPU_KVCACHE_SPACE, and what to do where it is small.

What: the host does not read the variable, the platform does; ``_check_enough_kv_cache_memory``
    raises another sentence.
Why: the host parses the variable as a whole number; its sentence rounds small caches to 0.0 GiB,
    and its advice is a setting of GPUs that cannot give more than there is.
Since: 0.32
Until: it parses a fraction, and names VLLM_CPU_KVCACHE_SPACE and ``--max-model-len auto``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cpu_backend.errors import ConfigError
from cpu_backend.host.seam import change, patch
from cpu_backend.runtime.memory import GIB

MIB = GIB >> 10


@change("vllm.envs", "environment_variables")
def read_nothing(module: Any) -> None:
    """The platform overwrites what the host makes of it."""
    module.environment_variables["VLLM_CPU_KVCACHE_SPACE"] = lambda: 0


@patch(
    ("vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils"),
    "_check_enough_kv_cache_memory(available_memory, get_needed_memory, max_model_len, "
    "estimate_max_model_len)",
)
def check_size(_: Any) -> Any:
    """Raises ConfigError where one request of full length does not fit."""

    def check(
        available_memory: int,
        get_needed_memory: Callable[[], int],
        max_model_len: int,
        estimate_max_model_len: Callable[[int], int],
    ) -> None:
        needed = get_needed_memory()
        if needed <= available_memory:
            return
        fits = estimate_max_model_len(available_memory) if available_memory > 0 else 0
        shorter = f"choose --max-model-len {fits} or less (auto takes what fits), " if fits else ""
        raise ConfigError(
            f"One request of {max_model_len} tokens fills {_size(needed)} of KV cache, which has "
            f"{_size(available_memory)}: {shorter}give it more memory (VLLM_CPU_KVCACHE_SPACE sets "
            "how much), or take a smaller or quantized model."
        )

    return check


def _size(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB / 10 else f"{count / MIB:.2f} MiB"
