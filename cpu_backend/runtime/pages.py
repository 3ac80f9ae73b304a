"""Memory for the KV cache: pages that the system hands out zeroed when they are first touched.

``torch.zeros`` writes every byte at start-up, on one thread: 2 s per GiB here, and all pages on the
NUMA node of that thread.  Anonymous pages cost nothing until used, come from the node of the thread
that uses them, and can be huge (2 MiB): fewer TLB misses on long contexts.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def zero_pages(num_bytes: int) -> torch.Tensor:
    """An int8 tensor of zeros, page-aligned, not yet backed by memory."""
    if num_bytes == 0:
        return torch.empty(0, dtype=torch.int8)
    pages = mmap.mmap(-1, num_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # without transparent huge pages small ones work as well
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.int8)


class LazyZeros(TorchFunctionMode):
    """Within this context ``torch.zeros(n, dtype=torch.int8)`` takes untouched pages."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.zeros and kwargs.get("dtype") is torch.int8 and isinstance(args[0], int):
            return zero_pages(args[0])
        return func(*args, **kwargs)
