"""What Linux does for threads and memory."""

import contextlib
import ctypes
import os
import platform
from collections.abc import Collection

# Numbers of the system call set_mempolicy.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "s390x": 270}
_MADV_REMOVE = 9  # linux/mman.h: what Python's mmap makes, a shared mapping, keeps its pages else


def allowed_cpus() -> frozenset[int] | None:
    """Where the calling thread may run; None if the system does not tell."""
    return frozenset(os.sched_getaffinity(0))


def bind_thread(cpus: Collection[int]) -> bool:
    """The calling thread, and all that it starts, run on these CPUs only.

    Returns whether the system can do that.  Raises OSError where it refuses.
    """
    os.sched_setaffinity(0, cpus)
    return True


def move_threads(cpus: Collection[int], bound_to: int | None = None) -> bool:
    """Move threads of this process to these CPUs: all, or but for the main one those ``bound_to``
    one CPU alone.  Returns whether any has moved; one that has ended or may not stays."""
    moved = False
    for entry in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            if bound_to is None or (
                int(entry) != os.getpid() and os.sched_getaffinity(int(entry)) == {bound_to}
            ):
                os.sched_setaffinity(int(entry), cpus)
                moved = True
    return moved


def may_bind_threads() -> bool | None:
    """Whether the system allows it; None if it cannot be known, or done."""
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except OSError:
        return False
    return True


def may_bind_memory() -> bool | None:
    """The same of memory: asks for the default policy, which every process begins with."""
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return None
    return ctypes.CDLL(None).syscall(number, 0, None, ctypes.c_ulong(0)) == 0


def release(address: int, num_bytes: int) -> bool:
    """Give whole pages of an anonymous shared mapping back; they read as zeros.

    Returns whether the system has taken them; else they are as they were.
    """
    where, size = ctypes.c_void_p(address), ctypes.c_size_t(num_bytes)
    return ctypes.CDLL(None).madvise(where, size, _MADV_REMOVE) == 0


def mallopt(parameter: int, value: int) -> None:
    """glibc's function; nothing where the C library has none, as musl, which needs none."""
    if call := getattr(ctypes.CDLL(None), "mallopt", None):
        call(parameter, value)


def malloc_trim() -> None:
    """Give what the heap has free back to the system; as mallopt."""
    if call := getattr(ctypes.CDLL(None), "malloc_trim", None):
        call(0)
