"""Which forwards of the host's models are nothing but gate and up projection, activation and down
projection.

A forward is known by its code, from whatever class and version of the host: if it is one of FORMS,
up to the names of its variables, nothing lies between projection and activation.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

FORMS = (
    """
    def forward(self, x):
        gate_up, _ = self.gate_up_proj(x)
        activated = self.act_fn(gate_up)
        out, _ = self.down_proj(activated)
        return out
    """,
    """
    def forward(self, x):
        gate_up, _ = self.gate_up_proj(x)
        out, _ = self.down_proj(self.act_fn(gate_up))
        return out
    """,
    """
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_up_proj(x)[0]))[0]
    """,
    # The host's function activates and quantizes in one kernel where it has one: not on CPUs.
    """
    def forward(self, x):
        gate_up, _ = self.gate_up_proj(x)
        activated = maybe_fused_act_quant(self.act_fn, gate_up, self.down_proj)
        out, _ = self.down_proj(activated)
        return out
    """,
)


@functools.cache
def is_known(forward: Callable[..., Any]) -> bool:
    """Whether the code of a module's ``forward`` is one of FORMS."""
    try:
        code = _renamed(inspect.getsource(forward))
    except (OSError, TypeError):  # made while the program runs
        return False
    return code in _known()


@functools.cache
def _known() -> frozenset[str]:
    return frozenset(_renamed(form) for form in FORMS)


def _renamed(source: str) -> str:
    """A function's code without annotations, words and names of its own; "" where it branches."""
    [function] = ast.parse(textwrap.dedent(source)).body
    if not isinstance(function, ast.FunctionDef) or function.args.kwonlyargs:
        return ""
    names = _Names()
    for argument in function.args.args:
        names.bind(argument.arg)
    lines = []
    for statement in function.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        if not isinstance(statement, (ast.Assign, ast.Return)):
            return ""
        lines.append(ast.unparse(names.visit(statement)))
    return "\n".join(lines)


class _Names(ast.NodeTransformer):
    """Numbers variables in the order in which they are bound; each binding is a new one."""

    def __init__(self) -> None:
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

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Names that are not bound here are the module's, and stay."""
        is_bound = isinstance(node.ctx, ast.Store)
        node.id = self.bind(node.id) if is_bound else self._names.get(node.id, node.id)
        return node
