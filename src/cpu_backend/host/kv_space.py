"""Fractions in VLLM_CPU_KVCACHE_SPACE.

What: the host does not read the variable; the platform does.
Why: the host parses it as a whole number.
Since: 0.32
Until: it parses a fraction.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import change


@change("vllm.envs", "environment_variables")
def read_nothing(module: Any) -> None:
    """The platform overwrites what the host makes of it."""
    module.environment_variables["VLLM_CPU_KVCACHE_SPACE"] = lambda: 0
