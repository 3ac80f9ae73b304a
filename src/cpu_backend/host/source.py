"""What the host's source files define, found by searching their text: nothing is imported.

A symbol is "name" or "Class.name" of a module, with "(parameters)" where these count: the names in
order, "*" and "**" as in the language, and "..." at the end for "whatever follows".
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import sys
from pathlib import Path

Modules = str | tuple[str, ...]

TOKEN = re.compile(r"""[()]|#.*|"[^"\n]*"|'[^'\n]*'""")  # brackets, and where they do not count


class Source:
    """The host's package in the folder ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._texts: dict[str, str] = {}

    @functools.cached_property
    def release(self) -> tuple[int, ...]:
        """(major, minor); later than any if the package does not say."""
        text = self.text("vllm._version") or ""
        found = re.search(r"""^__version__ .*["'](\d+)\.(\d+)""", text, re.MULTILINE)
        return (int(found[1]), int(found[2])) if found else (sys.maxsize,)

    def file(self, module: str) -> Path | None:
        """Where a module's code is; None if there is no such module."""
        path = self.root.joinpath(*module.split(".")[1:])
        files = (path.with_suffix(".py"), path / "__init__.py")
        return next((file for file in files if file.exists()), None)

    def first(self, modules: Modules) -> str:
        """The first of several names of one module that exists, or simply the first."""
        names = (modules,) if isinstance(modules, str) else modules
        return next((name for name in names if self.file(name)), names[0])

    def text(self, module: str) -> str | None:
        """The module's code."""
        if module not in self._texts:
            file = self.file(module)
            if file is None:
                return None
            self._texts[module] = file.read_text()
        return self._texts[module]

    def difference(self, modules: Modules, symbol: str) -> str:
        """How the host differs from what ``symbol`` says, as the end of a sentence; or ""."""
        module = self.first(modules)
        text = self.text(module)
        if text is None:
            return f"has no module {module}"
        path, _, wanted = symbol.partition("(")
        scope = self._scope(text, path.split(".")[:-1])
        name = path.rpartition(".")[2]
        where = f"{module}.{path}"
        if not wanted:
            return "" if scope and _is_named(scope, name) else f"has no {where}"
        found = [parameters(header) for header in _headers(scope, name)]
        expected = [part.strip() for part in wanted.rstrip(")").split(",") if part.strip()]
        if any(_fits(names, expected) for names in found):
            return ""
        if not found:
            return f"has no function {where}"
        return f"has {where}({', '.join(found[-1])}) in place of {name}({wanted}"

    def definition(self, modules: Modules, symbol: str) -> str:
        """The code of a function or class; "" if there is none."""
        text = self.text(self.first(modules)) or ""
        path = symbol.partition("(")[0]
        scope = self._scope(text, path.split(".")[:-1])
        name = path.rpartition(".")[2]
        found = list(re.finditer(rf"^( *)(?:async )?(?:def|class) {name}\b", scope, re.MULTILINE))
        return _block(scope, found[-1]) if found else ""

    @staticmethod
    def _scope(text: str, classes: list[str]) -> str:
        for name in classes:
            found = re.search(rf"^( *)class {name}\b", text, re.MULTILINE)
            if found is None:
                return ""
            text = _block(text, found)
        return text


@functools.cache
def host() -> Source:
    """The installed host's."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("vllm is not installed: install it beside this backend.")
    return Source(Path(spec.submodule_search_locations[0]))


def _block(text: str, head: re.Match[str]) -> str:
    """From a definition's head to the next line of code that is not further in."""
    end = re.compile(rf"^ {{0,{len(head[1])}}}[\w@]", re.MULTILINE).search(text, head.end())
    return text[head.start() : end.start() if end else len(text)]


def _is_named(scope: str, name: str) -> bool:
    """Whether the scope defines, assigns, declares or imports a name, or a class an attribute."""
    for found in re.finditer(rf"\b{name}\b", scope):
        before = scope[scope.rfind("\n", 0, found.start()) + 1 : found.start()].lstrip()
        after = scope[found.end() : found.end() + 8].lstrip(" ")
        if before in ("", "self.", '"', "'") and re.match(r"[\"']?:|=(?!=)|,?\n|$", after):
            return True
        if re.match(r"(async )?(def|class) $|(from [\w.]+ )?import ", before):
            return True
    return False


def _headers(scope: str, name: str) -> list[str]:
    """The parameters in parentheses of every function of the name, right in the scope: a module,
    or a class from its head on."""
    head = re.match(r"( *)class ", scope)
    indent = "" if head is None else head[1] + "    "
    headers = []
    for found in re.finditer(rf"^{indent}(?:async )?def {name}(?=[(\[])", scope, re.MULTILINE):
        begin = scope.index("(", found.end())
        depth = 0
        for token in TOKEN.finditer(scope, begin):
            depth += {"(": 1, ")": -1}.get(token[0], 0)
            if depth == 0:
                headers.append(scope[begin : token.end()])
                break
    return headers


def parameters(header: str) -> list[str]:
    """The names in "(a, *, b: int = 1, **c)"."""
    [function] = ast.parse(f"def f{header}: pass").body
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    names = [a.arg for a in given.posonlyargs] + ["/"] * bool(given.posonlyargs)
    names += [a.arg for a in given.args]
    if given.vararg is not None:
        names.append(f"*{given.vararg.arg}")
    elif given.kwonlyargs:
        names.append("*")
    names += [a.arg for a in given.kwonlyargs]
    return names + ([f"**{given.kwarg.arg}"] if given.kwarg is not None else [])


def _fits(names: list[str], expected: list[str]) -> bool:
    if expected[-1:] == ["..."]:
        return names[: len(expected) - 1] == expected[:-1]
    return names == expected
