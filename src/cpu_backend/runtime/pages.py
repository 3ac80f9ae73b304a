"""Memory for KV cache and weights: pages that come from the system late and go back early.

``torch.zeros`` writes every byte at start-up, on one thread: 2 s per GiB here, and all pages on the
NUMA node of that thread.  Pages of a mapping cost nothing until used and come from the node of the
thread that uses them.  Huge ones (2 MiB) did not pay for the cache: in turns on a Zen 5 neither
prompts that touch new pages nor decode steps at 7,000 tokens of context became faster.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cpu_backend.runtime import system

# Parameters of mallopt() in glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_MAPPED_BYTES, _MAPPED_BLOCKS = 128 << 10, 1 << 16  # where glibc begins, and how many it makes
_KEPT_BYTES = 1 << 30  # of the heap, for the next step's activations


@contextlib.contextmanager
def freed_at_once() -> Iterator[None]:
    """Blocks of 128 KiB and more that make the process larger here make it smaller when freed.

    By itself glibc soon takes blocks of up to 32 MiB from its heap, which keeps the holes: the
    checkpoint's tensors would stay beside the packed weights that replace them one by one.

    Afterwards the heap gives every block and keeps it: a step of thousands of tokens asks for the
    same large activations again, and new pages for them took a tenth of an encoder's time.
    """
    system.mallopt(_MMAP_MAX, _MAPPED_BLOCKS)
    system.mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
    try:
        yield
    finally:
        system.mallopt(_MMAP_MAX, 0)
        system.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def zero_pages(num_bytes: int) -> torch.Tensor:
    """An int8 tensor of zeros, page-aligned, not yet backed by memory."""
    if num_bytes == 0:
        return torch.empty(0, dtype=torch.int8)
    return torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.int8)


def give_back(tensor: torch.Tensor) -> int:
    """Return the pages of a tensor from :func:`zero_pages` to the system; they read as zeros.

    tensor: any view; all of its storage is meant.  Returns the bytes, 0 where the system refuses.
    """
    storage = tensor.untyped_storage()
    released = system.release(storage.data_ptr(), storage.nbytes())
    return storage.nbytes() if released else 0


class LazyZeros(TorchFunctionMode):
    """Within this context ``torch.zeros(n, dtype=torch.int8)`` takes untouched pages."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.zeros and kwargs.get("dtype") is torch.int8 and isinstance(args[0], int):
            return zero_pages(args[0])
        return func(*args, **kwargs)
