"""Kernels are registered in a process that has loaded llvmlite."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
from vllm.platforms import current_platform
import llvmlite.binding
current_platform.register_triton_kernel_overrides()
import sys
assert sys.modules["llvmlite.binding"] is llvmlite.binding
"""


def test_kernels_are_registered_beside_llvmlite() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
