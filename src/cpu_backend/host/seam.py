"""How this backend changes the host: each change declared, all checked, then applied once.

The files beside this one declare what they change, and say in the same words (What, Why, Since,
Until) what for::

    @patch("vllm.v1.engine.async_llm", "AsyncLLM.shutdown(self, ...)")
    def shutdown(original):
        def replacement(self, *args, **kwargs): ...
        return replacement

Before any of it is applied, :func:`differences` holds every symbol and its parameters against the
host's source, and with them every name of the host that this package imports anywhere.  So a host
that has changed is left alone as a whole.
"""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_backend.host import source
from cpu_backend.host.on_load import when_loaded
from cpu_backend.host.source import Modules, Source

PACKAGE = Path(__file__).parents[1]
IMPORT = re.compile(r"^ *from (vllm[\w.]*) import (?:\(([^)]*)\)|([^\n(]+))", re.MULTILINE)


class When(enum.Enum):
    """STARTING: in every process.  COMPUTING: in the processes that compute, from before they make
    a model.  Either way as soon as the host has imported the module: none is imported for its
    change, as one model's may need what a machine has not that serves another."""

    STARTING = enum.auto()
    COMPUTING = enum.auto()


@dataclass(frozen=True)
class Hosts:
    """Releases of the host from ``since`` on and before ``until``; all of them where these are
    empty."""

    since: tuple[int, ...] = ()
    until: tuple[int, ...] = ()

    def __contains__(self, host: Source) -> bool:
        return self.since <= host.release and (not self.until or host.release < self.until)


ALL = Hosts()


@dataclass(frozen=True)
class Change:
    """``act(module)`` changes the first of ``modules`` that the host has, which must have the
    ``symbols``; ``file``: the module of this folder that declares it; ``hosts``: of which ones."""

    modules: Modules
    symbols: tuple[str, ...]
    when: When
    act: Callable[[Any], None]
    file: str
    hosts: Hosts


_changes: list[Change] = []
_relied_on: list[tuple[Modules, str, Hosts]] = []


def change(
    modules: Modules, *symbols: str, when: When = When.STARTING, hosts: Hosts = ALL
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """The function that this decorates changes a module of the host, which it is given."""

    def declare(act: Callable[[Any], None]) -> Callable[[Any], None]:
        _changes.append(Change(modules, symbols, when, act, act.__module__, hosts))
        return act

    return declare


def rely_on(module: str, *symbols: str, hosts: Hosts = ALL) -> str:
    """Declare that the host must have them, where nothing is changed; the first one's full name."""
    _relied_on.extend((module, symbol, hosts) for symbol in symbols)
    return f"{module}.{symbols[0].partition('(')[0]}"


Make = Callable[[Any], Any]


def patch(
    modules: Modules, symbol: str, when: When = When.STARTING, hosts: Hosts = ALL
) -> Callable[[Make], Make]:
    """The function that this decorates makes the replacement of ``symbol`` from the original."""
    path = symbol.partition("(")[0]

    def declare(make: Make) -> Make:
        def act(module: Any) -> None:
            replace(module, path, make)

        act.__module__ = make.__module__
        change(modules, symbol, when=when, hosts=hosts)(act)
        return make

    return declare


def replace(owner: Any, path: str, make: Make) -> None:
    """Put ``make(original)`` in the place of "name" or "Class.name" of a module, or of a class."""
    *classes, name = path.split(".")
    for cls in classes:
        owner = getattr(owner, cls)
    found = inspect.getattr_static(owner, name)
    kind = type(found) if isinstance(found, (staticmethod, classmethod)) else None
    original = found.__func__ if kind else found
    made = make(original)
    if "<locals>" in getattr(made, "__qualname__", "") and callable(original):
        functools.update_wrapper(made, original)
    setattr(owner, name, kind(made) if kind else made)


def changes() -> tuple[Change, ...]:
    """All that are declared for this host, once the files of this folder are imported."""
    return tuple(one for one in _changes if source.host() in one.hosts)


def apply(when: When) -> None:
    """Do what is declared for that time.  Once each: callers see to that."""
    for one in changes():
        if one.when is when:
            when_loaded(source.host().first(one.modules), one.act)


def load(modules: Modules) -> Any:
    """The first module of the host that exists of these names."""
    return importlib.import_module(source.host().first(modules))


# ---- what the host must have ---------------------------------------------------------------------


def relied_on(host: Source) -> Iterator[tuple[Modules, str]]:
    """Every (modules, symbol) of the host that a change or an import of this package names."""
    for one in _changes:
        if host in one.hosts:
            yield from ((one.modules, symbol) for symbol in one.symbols)
    for modules, symbol, hosts in _relied_on:
        if host in hosts:
            yield modules, symbol
    for path in sorted(PACKAGE.rglob("*.py")):
        for found in IMPORT.finditer(path.read_text()):
            for name in re.sub(r"#.*", "", found[2] or found[3]).split(","):
                if name := name.split(" as ")[0].strip():
                    yield found[1], name


def differences(of: Source | None = None) -> list[str]:
    """What of it the host does not have, each as the end of a sentence about it."""
    host = of or source.host()
    found = []
    for modules, symbol in relied_on(host):
        is_module = isinstance(modules, str) and host.file(f"{modules}.{symbol}")
        if not is_module and (said := host.difference(modules, symbol)) and said not in found:
            found.append(said)
    return found
