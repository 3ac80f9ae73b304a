"""A server imports torch's compiler when something asks for it, which nothing does.

What: ``torch._dynamo`` and ``torch._inductor`` are packages whose code runs when a name or a module
    of theirs is asked for.  Until then what marks a function for the compiler returns it as it is,
    as does ``torch.compile``; ``_patch_inductor_fallback_allow_list`` waits for the module that it
    changes, and the decorators of the host's models for the class that they change to compile.
Why: the host imports them for the sake of that function, and of decorators; they import
    sympy, networkx and triton in turn, and this backend compiles nothing (platform.py).
Since: 0.30
Until: the host imports the compiler where it compiles.

torch calls this as it is imported, before the host goes on (``torch.backends``, pyproject.toml):
when the host asks for its platform they have long been imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, NamedTuple

from cpu_backend.host.on_load import when_loaded
from cpu_backend.host.seam import rely_on

HOST = "vllm.env_override"
PACKAGES = ("torch._dynamo", "torch._inductor")
BELOW = tuple(f"{name}." for name in PACKAGES)
MARKS = ("allow_in_graph", "assume_constant_result", "disable")
RULES = "torch._dynamo.trace_rules"
# These need nothing of their packages when they are imported: the host derives a class from one in
# the first, transformers takes one from the second, and the third is empty.
ALONE = {
    "torch._inductor.custom_graph_pass",
    "torch._dynamo._trace_wrapped_higher_order_op",
    "torch._inductor.runtime",
}


class _Taken(NamedTuple):
    """What a module of the host takes from one of the compiler's, to use it when it compiles."""

    importer: str
    name: str


TAKEN = {
    "torch._inductor.lowering": _Taken(HOST, "FALLBACK_ALLOW_LIST"),
    "torch._dynamo.symbolic_convert": _Taken(
        "vllm.compilation.decorators", "InliningInstructionTranslator"
    ),
    "torch._inductor.runtime.triton_helpers": _Taken(
        "vllm.v1.worker.gpu.metrics.logits", "libdevice"
    ),
}

rely_on(HOST, "_patch_inductor_fallback_allow_list()")
for taken in list(TAKEN.values())[1:]:
    rely_on(taken.importer, taken.name)

_running = threading.RLock()


def defer() -> None:
    """In this process, in which neither package is imported yet, and in its forks."""
    import torch

    if any(name in sys.modules for name in PACKAGES):
        return
    sys.meta_path.insert(0, _Finder())
    torch.compile = _unchanged
    for module, taken in TAKEN.items():
        when_loaded(taken.importer, functools.partial(_give_later, module))
    when_loaded("torch._library.triton", _leave_kernels_unread)


def _leave_kernels_unread(module: Any) -> None:
    """Those that an op launches, which its code is searched for: for the compiler."""
    if hasattr(module, "get_inner_triton_kernels"):
        module.get_inner_triton_kernels = lambda fn: []


def _give_later(name: str, importer: Any) -> None:
    """The importer has taken None from an empty module."""
    _drop_stand_ins()

    def give(module: Any) -> None:
        if importer.__name__ == HOST:  # which has found that there is nothing to change
            importer._patch_inductor_fallback_allow_list()
        else:
            setattr(importer, TAKEN[name].name, getattr(module, TAKEN[name].name))

    when_loaded(name, give)


class _StandIn(importlib.abc.Loader):
    """Loads an empty module for the one importer of TAKEN."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Python's own."""

    def exec_module(self, module: ModuleType) -> None:
        """With the one name."""
        setattr(module, TAKEN[module.__name__].name, None)


def _stands_in(name: str) -> bool:
    """Whether an empty module will do for who imports it now."""
    importer = TAKEN[name].importer if name in TAKEN else ""
    spec = getattr(sys.modules.get(importer), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _drop_stand_ins() -> None:
    for name in TAKEN:
        module = sys.modules.get(name)
        if module is not None and isinstance(getattr(module, "__loader__", None), _StandIn):
            del sys.modules[name]
            package, _, last = name.rpartition(".")
            vars(sys.modules[package]).pop(last, None)


def _unchanged(function: Any = None, *args: Any, **options: Any) -> Any:
    """A decorator, with options or without, that does nothing."""
    del args, options
    return _unchanged if function is None else function


class _Rules:
    """torch.distributed clears the cache of these wherever the package is imported."""

    def clear_lru_cache(self) -> None:
        """There are none yet."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(RULES), name)


class _Deferred(ModuleType):
    """A package whose code has not run."""

    run: Callable[[ModuleType], None]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or _stands_in(f"{self.__name__}.{name}"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name in MARKS and self.__name__ == PACKAGES[0]:
            return _unchanged
        if name == RULES.rpartition(".")[2] and RULES.startswith(self.__name__):
            return _Rules()
        _run(self)
        return getattr(self, name)


def _run(package: ModuleType) -> None:
    with _running:
        if not isinstance(package, _Deferred):  # another thread was faster
            return
        names = vars(package)
        run = names.pop("run")
        _drop_stand_ins()
        object.__setattr__(package, "__class__", ModuleType)
        run(package)


class _Finder(importlib.abc.MetaPathFinder):
    """Of the two packages; their modules are found as ever, once the package has run."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name.startswith(BELOW) and name not in ALONE:
            package = sys.modules.get(".".join(name.split(".")[:2]))
            if isinstance(package, _Deferred):
                if _stands_in(name):
                    return ModuleSpec(name, _StandIn())
                _run(package)
        if name not in PACKAGES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def wait(module: ModuleType) -> None:
            vars(module)["run"] = run
            module.__class__ = _Deferred

        spec.loader.exec_module = wait  # type: ignore[method-assign]
        return spec
