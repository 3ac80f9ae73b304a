"""``python -m tests.zoo.as_arm tests.zoo NAMES``: as that module, on a host that takes this CPU for
an ARM one with bf16.

The host has branches for ARM, of activations, convolutions, experts and 4-bit weights; this runs
those of them that the backend leaves to it, at this CPU's speed.  What an ARM CPU computes is
another question (elsewhere.py).
"""

from __future__ import annotations

import runpy
import sys

import torch
from vllm.platforms import interface


def pretend() -> None:
    """Have the host, in this process and its children, believe it."""
    # All that it asks of torch beside the architecture: model_executor/layers/utils.py, 0.32.
    torch.cpu.get_capabilities = lambda: {"architecture": "aarch64", "bf16": True, "i8mm": True}
    torch.cpu._is_avx512_bf16_supported = lambda: False
    interface.Platform.get_cpu_architecture = classmethod(  # type: ignore[method-assign]
        lambda cls: interface.CpuArchEnum.ARM
    )


def main() -> None:
    pretend()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
