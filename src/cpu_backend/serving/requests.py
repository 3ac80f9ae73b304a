"""Odd requests end with status 400 and a sentence, before the engine sees them.

One look at the body of every request, one at every constraint on the output, and an engine that
compiles each constraint with the library that has accepted it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

# A lone half of a pair, escaped or in bytes; whole pairs are found too and looked at closely.
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")

# What xgrammar refuses, and the library that the host then asks takes for the empty text.
EMPTY_RULE = re.compile(r"([\w-]+)\s*::=\s*(?=[\w-]+\s*::=|\Z)")

# Kinds of expressions in a grammar that xgrammar writes as JSON.
CHARACTERS, RULE, SEQUENCE, CHOICES, REPEAT = 1, 4, 5, 6, 8
ALL_CHARACTERS = 0x110000


# ---- bodies --------------------------------------------------------------------------------------


def odd(raw: bytes, body: Any) -> str:
    """What the host would fail on in the request ``raw``, read as ``body``; empty if nothing."""
    if SURROGATE.search(raw):
        try:
            json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            return f"The request has half of a surrogate pair, {half}, which is no character."
    constraint = body.get("structured_outputs") if isinstance(body, dict) else None
    if constraint is not None and not isinstance(constraint, dict):
        return (
            "structured_outputs must be an object with one of json, regex, choice, grammar, "
            "json_object and structural_tag."
        )
    return ""


# ---- constraints on the output -------------------------------------------------------------------


def unanswerable(constraint: Any, is_lark: Callable[[str], bool]) -> str:
    """What is wrong with a constraint that compiles; empty if an answer can fit it.

    ``is_lark`` tells the grammars of Lark's syntax, as the host does.
    """
    if constraint._backend == "xgrammar":
        grammar = _grammar(constraint, is_lark)
        if grammar is not None and not is_productive(grammar):
            return (
                "The constraint on the output allows no answer: every text that it describes is "
                "without an end, or needs a character that none can be."
            )
    elif empty := EMPTY_RULE.search(constraint.grammar or ""):
        return (
            f'The constraint on the output has nothing after "{empty[1]} ::=" (the empty text is '
            'written "").'
        )
    return ""


def _grammar(constraint: Any, is_lark: Callable[[str], bool]) -> str | None:
    """The constraint as xgrammar's grammar in JSON; None for kinds that always have an answer."""
    import xgrammar

    if constraint.regex is not None:
        return str(xgrammar.Grammar.from_regex(constraint.regex).serialize_json())
    if constraint.json is not None:
        schema = constraint.json
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return str(xgrammar.Grammar.from_json_schema(text).serialize_json())
    if constraint.grammar is not None:
        lark = is_lark(constraint.grammar)
        read = xgrammar.Grammar.from_lark if lark else xgrammar.Grammar.from_ebnf
        return str(read(constraint.grammar).serialize_json())
    return None


def is_productive(grammar: str) -> bool:
    """Whether the root of a grammar, as xgrammar writes it, describes any text of finite length.

    A rule does if one of its choices is made of characters and of rules that do; the rules that do
    are found by going over all until none is added.
    """
    read = json.loads(grammar)
    data, starts = read["grammar_expr_data"], read["grammar_expr_indptr"]
    found: set[int] = set()

    def has_text(expression: int) -> bool:
        kind, length = data[starts[expression] : starts[expression] + 2]
        parts = data[starts[expression] + 2 : starts[expression] + 2 + length]
        if kind == CHARACTERS:
            return _has_character(parts[0] != 0, parts[1:])
        if kind == RULE:
            return parts[0] in found
        if kind == REPEAT:
            return parts[1] == 0 or parts[0] in found
        if kind == SEQUENCE:
            return all(map(has_text, parts))
        return kind != CHOICES or any(map(has_text, parts))

    rules = [rule[1] for rule in read["rules"]]
    while added := {i for i, body in enumerate(rules) if i not in found and has_text(body)}:
        found |= added
    return read["root_rule_id"] in found


def _has_character(negated: bool, ranges: list[int]) -> bool:
    """Whether a class has a character: ``ranges`` are pairs of a first and a last one."""
    if not negated:
        return bool(ranges)
    end = 0  # every character below is in a range
    for first, last in sorted(zip(ranges[::2], ranges[1::2], strict=True)):
        if first > end:
            return True
        end = max(end, last + 1)
    return end < ALL_CHARACTERS
