"""What only the operating system can do or tell: one file per system, this one takes it.

``linux.py`` and, for all others, ``other.py`` have the same functions; all files of ``/proc`` and
``/sys`` are read through ``sysfs.py``, for which a file that is missing is empty.
"""

import sys

if sys.platform == "linux":
    from cpu_backend.runtime.linux import (
        allowed_cpus,
        bind_thread,
        malloc_trim,
        mallopt,
        may_bind_memory,
        may_bind_threads,
        move_threads,
        release,
    )
else:
    from cpu_backend.runtime.other import (
        allowed_cpus,
        bind_thread,
        malloc_trim,
        mallopt,
        may_bind_memory,
        may_bind_threads,
        move_threads,
        release,
    )

__all__ = [
    "allowed_cpus",
    "bind_thread",
    "malloc_trim",
    "mallopt",
    "may_bind_memory",
    "may_bind_threads",
    "move_threads",
    "release",
]
