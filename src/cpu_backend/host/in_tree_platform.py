"""This platform in the place of the host's own for CPUs.

What: the one platform object, which every module shares, changes its class.
Why: VLLM_TARGET_DEVICE=cpu makes the host skip all platform plugins.
Since: 0.32
Until: it no longer does.
"""

from __future__ import annotations

from collections.abc import Callable


def replace(prepare_process: Callable[[], None]) -> None:
    """If one of the host's own is in use; where zentorch is installed, that is the one for Zen."""
    from vllm.platforms import current_platform
    from vllm.platforms.cpu import CpuPlatform

    if isinstance(current_platform, CpuPlatform):
        from cpu_backend.platform import CpuBackendPlatform

        if isinstance(current_platform, CpuBackendPlatform):
            return
        prepare_process()
        current_platform.__class__ = CpuBackendPlatform
        current_platform.import_kernels()
