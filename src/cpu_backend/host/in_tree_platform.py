"""This platform in the place of the host's own for CPUs.

What: the one platform object, which every module shares, changes its class.
Why: VLLM_TARGET_DEVICE=cpu makes the host skip all platform plugins.
Since: 0.32
Until: it no longer does.
"""

from __future__ import annotations

from collections.abc import Callable


def replace(prepare_process: Callable[[], None]) -> None:
    """If the host's own platform is the one in use."""
    from vllm.platforms import current_platform
    from vllm.platforms.cpu import CpuPlatform

    if type(current_platform) is CpuPlatform:
        from cpu_backend.platform import CpuBackendPlatform

        prepare_process()
        current_platform.__class__ = CpuBackendPlatform
        current_platform.import_kernels()
