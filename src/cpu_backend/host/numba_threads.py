"""numba keeps the threads that it has begun with.

What: numba's ``_EnvReloader.process_environ`` leaves their number as it is, once they run.
Why: numba takes it from the cores of the thread that asks, which in an engine without a process of
    its own this backend binds to one core meanwhile.  The host changes a variable of numba's for
    each compilation (Kimi K2.5's images), so numba reads all of them again, and ends for another
    number.
Since: 0.32
Until: numba reads it once.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from cpu_backend.host.on_load import when_loaded
from cpu_backend.host.seam import replace


def keep() -> None:
    """In this process, and in its forks."""
    when_loaded("numba.core.config", _change)


def _change(config: Any) -> None:
    make = functools.partial(_with_number, config)
    replace(config, "_EnvReloader.process_environ", make)


def _with_number(config: Any, original: Any) -> Any:
    def process_environ(self: Any, environ: dict[str, str]) -> None:
        parallel = sys.modules.get("numba.np.ufunc.parallel")
        if parallel is not None and parallel._is_initialized:
            environ = {"NUMBA_NUM_THREADS": str(config.NUMBA_NUM_THREADS), **environ}
        original(self, environ)

    return process_environ
