"""What the doctor finds: one line each, with the way out where it is not well."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """PROBLEM: no server starts, or not as it is set.  NOTE: it starts, and could do better."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """``about`` is one word; ``way_out`` is empty where all is well."""

    level: Level
    about: str
    says: str
    way_out: str = ""

    @property
    def sentence(self) -> str:
        return f"{self.says}: {self.way_out}" if self.way_out else self.says


def ok(about: str, says: str) -> Finding:
    return Finding(Level.OK, about, says)


def note(about: str, says: str, way_out: str) -> Finding:
    return Finding(Level.NOTE, about, says, way_out)


def problem(about: str, says: str, way_out: str) -> Finding:
    return Finding(Level.PROBLEM, about, says, way_out)


def told(about: str, sentence: str) -> Finding:
    """A problem in a sentence that another part of this package wrote, cause and way out in one."""
    says, colon, way_out = sentence.rstrip(".").rpartition(": ")
    return problem(about, says, way_out) if colon else problem(about, way_out, "")
