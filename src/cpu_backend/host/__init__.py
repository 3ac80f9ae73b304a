"""All that this backend changes in the host, one file per change; see seam.py for how.

``python -m cpu_backend.host`` prints the list, with what differs in the installed host.
Subclasses of the host's classes are in worker/, attention/ and platform.py; what layers/ subclass
comes by way of bases.py and quantized_bases.py.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from cpu_backend.host import compiler, in_tree_platform, numba_cache, numba_threads, process
from cpu_backend.host.seam import When, apply, differences

__all__ = [
    "check",
    "defer_compiler",
    "prepare_model",
    "prepare_process",
    "replace_in_tree_platform",
    "serves",
]

serves = process.serves

# Not declarations, or with imports of the host that must wait.
_OTHERS = {"__main__", "bases", "quantized_bases", "on_load", "seam", "source"}


@functools.cache
def declare() -> tuple[str, ...]:
    """Import every file of this folder that declares a change; their names."""
    names = [m.name for m in pkgutil.iter_modules(__path__) if m.name not in _OTHERS]
    for name in names:
        importlib.import_module(f"{__name__}.{name}")
    return tuple(names)


@functools.cache
def check() -> tuple[str, ...]:
    """What the installed host lacks of what this backend changes or imports; empty if nothing.
    Nothing of the host is imported or changed."""
    declare()
    return tuple(differences())


def defer_compiler() -> None:
    """Before the host imports torch's compiler, right after torch."""
    compiler.defer()


@functools.cache
def prepare_process() -> None:
    """Change the host in this process, before it has imported its Triton layer."""
    declare()
    process.prepare()
    numba_cache.make_optional()
    numba_threads.keep()
    apply(When.STARTING)


@functools.cache
def prepare_model() -> None:
    """Change the host where a model is about to be made."""
    from cpu_backend.layers import quantization

    declare()
    quantization.register_own()
    apply(When.COMPUTING)


def replace_in_tree_platform() -> None:
    """Take over where ``VLLM_TARGET_DEVICE=cpu`` made the host skip platform plugins."""
    in_tree_platform.replace(prepare_process)
