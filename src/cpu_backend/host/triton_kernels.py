"""Ops in the places of the host's Triton kernels.

What: ``register`` gives them to the host's registry, which looks for their holders among modules
    of the host and of its plugins.  Where there is none, every holder of such a kernel gets the op,
    before a worker is made.
Why: Triton does not compile for CPUs here.  The registry asks each object of every module for its
    ``__dict__``, which takes a moment of the start; llvmlite's handle of LLVM (Kimi Linear's class
    imports it) takes that for a function of LLVM's, and the engine would end with an
    AttributeError.  Deprecated names of torch's answer with a warning that users would take for
    their own concern.
Since: 0.30
Until: it looks among its own.  Without a registry: 0.31.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from cpu_backend.host import source
from cpu_backend.host.seam import Hosts, patch, rely_on

MODULE = "vllm.triton_utils.dispatcher"
WITH_REGISTRY = Hosts(since=(0, 31))
WITHOUT_REGISTRY = Hosts(until=(0, 31))


def register(ops: Mapping[str, Callable[..., Any]]) -> None:
    """``ops`` by the full names of kernels, whose parameters they take in the same order."""
    if source.host() in WITH_REGISTRY:
        importlib.import_module(MODULE).register_kernels(ops)
        return
    for name, op in ops.items():
        _put(name, op)


rely_on(MODULE, "sys", hosts=WITH_REGISTRY)


@patch(MODULE, "_rebind_kernels(overrides)", hosts=WITH_REGISTRY)
def search_the_host(original: Any) -> Any:
    """And plugins of it: four fifths of what is imported know nothing of its kernels."""

    def rebind(overrides: Any) -> None:
        registry: Any = sys.modules[MODULE]
        holders = {name: module for name, module in list(sys.modules.items()) if _may_hold(name)}
        registry.sys = SimpleNamespace(modules=holders)
        try:
            original(overrides)
        finally:
            registry.sys = sys

    return rebind


def _may_hold(module: str) -> bool:
    return module.startswith(("vllm.", "vllm_", "cpu_backend."))


@patch(
    "vllm.v1.worker.worker_base", "WorkerWrapperBase.init_worker(self, ...)", hosts=WITHOUT_REGISTRY
)
def ask_platform(original: Any) -> Any:
    """As later releases do before they make a worker."""

    def init_worker(self: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm.platforms import current_platform

        current_platform.register_triton_kernel_overrides()
        return original(self, *args, **kwargs)

    return init_worker


class _Kernel:
    """``kernel[grid](...)`` calls the op; the host asks for ``arg_names``."""

    def __init__(self, original: Any, op: Callable[..., Any]) -> None:
        self.arg_names = tuple(inspect.signature(getattr(original, "func", original)).parameters)
        self._op = op

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return self._launch

    def _launch(self, *args: Any, **kwargs: Any) -> Any:
        return self._op(*args, *(kwargs[name] for name in self.arg_names if name in kwargs))


def _put(name: str, op: Callable[..., Any]) -> None:
    """Modules of the host hold a kernel by a name, or in an object that launches it."""
    path, attribute = name.rsplit(".", 1)
    parent, _, last = path.rpartition(".")
    if last[0].isupper():  # a class of the module `parent`
        owner = getattr(importlib.import_module(parent), last)
    else:
        owner = importlib.import_module(path)
    original = getattr(owner, attribute)
    kernel = _Kernel(original, op)
    setattr(owner, attribute, kernel)
    for holder in [m for held, m in sys.modules.items() if held.partition(".")[0] == "vllm"]:
        for key, value in list(vars(holder).items()):
            if value is original:
                setattr(holder, key, kernel)
            elif inspect.getattr_static(value, "kernel", None) is original:
                value.kernel = kernel
