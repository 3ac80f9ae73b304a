"""Kernels are put in their places without noise, beside a loaded llvmlite, too.

What: ``_rebind_kernels`` passes over llvmlite's modules (Kimi Linear's class imports them), and
    does not show warnings.
Why: the host asks each object of every module for its ``__dict__``; llvmlite's handle of LLVM takes
    that for a function of LLVM's, and the engine would end with an AttributeError.  Deprecated
    names of torch's answer with a warning that users would take for their own concern.
Since: 0.32
Until: it asks only what has one.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from cpu_backend.host.seam import patch


@patch("vllm.triton_utils.dispatcher", "_rebind_kernels(overrides)")
def pass_over_llvm(original: Any) -> Any:
    """Nothing there holds a kernel of the host's."""

    def rebind(overrides: Any) -> None:
        names = [name for name in sys.modules if name.partition(".")[0] == "llvmlite"]
        hidden = {name: sys.modules.pop(name) for name in names}
        try:
            with warnings.catch_warnings(action="ignore", category=FutureWarning):
                original(overrides)
        finally:
            sys.modules.update(hidden)

    return rebind
