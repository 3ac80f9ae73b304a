"""Whether the host would find a GPU or another accelerator.

What: its own detectors are asked.
Why: two plugins that say yes end the start; this one yields to whatever the host can use.
Since: 0.32
Until: never.
"""

from __future__ import annotations


def host_sees_accelerator() -> bool:
    """Whether one of the host's own detectors finds a device that is not a CPU."""
    from vllm.platforms import builtin_platform_plugins

    for name, detect in builtin_platform_plugins.items():
        if name == "cpu":
            continue
        try:
            if detect() is not None:
                return True
        except Exception:  # a detector that fails has found nothing
            continue
    return False
