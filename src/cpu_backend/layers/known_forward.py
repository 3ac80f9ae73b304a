"""Which forwards of the host's models are of a known form.

A forward is known by its code, from whatever class and version of the host: it is a form if it
differs from it in nothing but the names of its variables and of the module's attributes.  Then
nothing lies between the steps that the form shows, and they may be computed together.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple


@functools.cache
def attributes(forward: Callable[..., Any], form: str) -> dict[str, str] | None:
    """What a module with this ``forward`` calls the attributes of ``form``; None if it is another.

    ``form``: the source of a function without branches.
    """
    code = _renamed(_source(forward))
    known = _renamed(form)
    if code.text != known.text or not code.text:
        return None
    return dict(zip(known.attributes, code.attributes, strict=True))


@functools.cache
def _source(forward: Callable[..., Any]) -> str:
    """Of a function; "" of one that is made while the program runs."""
    try:
        return inspect.getsource(forward)
    except (OSError, TypeError):
        return ""


class _Code(NamedTuple):
    text: str
    attributes: tuple[str, ...]  # of the module, in the order in which the text numbers them


@functools.cache
def _renamed(source: str) -> _Code:
    """A function's code without annotations, words and names of its own; "" where it branches, is
    decorated or takes more than arguments in order."""
    nothing = _Code("", ())
    try:
        [function] = ast.parse(textwrap.dedent(source)).body
    except (SyntaxError, ValueError):  # words that begin further left than itself; nothing
        return nothing
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return nothing
    arguments = function.args
    if arguments.kwonlyargs or arguments.vararg or arguments.kwarg:
        return nothing
    names = _Names()
    lines = [", ".join(names.bind(argument.arg) for argument in arguments.args)]
    for statement in function.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        if not isinstance(statement, (ast.Assign, ast.Return)):
            return nothing
        lines.append(ast.unparse(names.visit(statement)))
    return _Code("\n".join(lines), tuple(names.attributes))


class _Names(ast.NodeTransformer):
    """Numbers variables in the order in which they are bound, each binding anew, and attributes of
    the first, the module, in the order in which they are read."""

    def __init__(self) -> None:
        self.attributes: list[str] = []
        self._names: dict[str, str] = {}
        self._bound = 0

    def bind(self, name: str) -> str:
        """A number for what the name means from here on."""
        self._names[name] = f"v{self._bound}"
        self._bound += 1
        return self._names[name]

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        """The value is read before the targets are bound."""
        node.value = self.visit(node.value)
        node.targets = [self.visit(target) for target in node.targets]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        """Those of other values stay."""
        node.value = self.visit(node.value)
        if isinstance(node.value, ast.Name) and node.value.id == "v0":
            if node.attr not in self.attributes:
                self.attributes.append(node.attr)
            node.attr = f"a{self.attributes.index(node.attr)}"
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Names that are not bound here are the module's, and stay."""
        is_bound = isinstance(node.ctx, ast.Store)
        node.id = self.bind(node.id) if is_bound else self._names.get(node.id, node.id)
        return node
