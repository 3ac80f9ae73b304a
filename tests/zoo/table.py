"""The page docs/models.md: which models run, as the zoo found it."""

from __future__ import annotations

from tests.zoo import kinds
from tests.zoo.judge import HOST, REFUSED, RIGHT, Outcome


def is_defect(outcome: Outcome) -> bool:
    """Whether an architecture may not have this outcome."""
    return outcome.state not in (RIGHT, REFUSED, HOST)


def page(outcomes: dict[str, Outcome]) -> str:
    return ""
