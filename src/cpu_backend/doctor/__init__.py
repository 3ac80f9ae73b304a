"""Whether a server could start and compute well here: ``python -m cpu_backend.info --check``.

One module per area.  Each reads its facts (``read``) and judges them in a pure function
(``judge``), which tests call with the facts of other machines.  Nothing here starts an engine or
imports the host; torch is imported where it is judged, since it may be missing or broken.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable

from cpu_backend.doctor.finding import Finding, Level

__all__ = ["Finding", "Level", "as_json", "as_text", "examine"]

# In the order of the report.  ``threads`` comes before ``library``, which loads an OpenMP runtime
# that may bind the calling thread.
AREAS = ("install", "settings", "threads", "memory", "processor", "library", "storage", "network")


def examine() -> list[Finding]:
    """All findings.  An area that cannot be examined is a finding itself."""
    findings: list[Finding] = []
    for name in AREAS:
        area = importlib.import_module(f"{__name__}.{name}")
        try:
            findings += area.judge(area.read())
        except Exception as error:
            said = f"could not be examined ({type(error).__name__}: {error})"
            findings.append(Finding(Level.PROBLEM, name, said, "report it with this line"))
    return findings


def as_text(findings: Iterable[Finding]) -> str:
    """One line each, and how many of them ask for something."""
    findings = list(findings)
    width = max((len(finding.about) for finding in findings), default=0)
    lines = [f"{f.level.value:<7}  {f.about:<{width}}  {f.sentence}" for f in findings]
    counts = [sum(f.level is level for f in findings) for level in (Level.PROBLEM, Level.NOTE)]
    summary = ", ".join(
        f"{count or 'no'} {word}{'' if count == 1 else 's'}"
        for count, word in zip(counts, ("problem", "note"), strict=True)
    )
    return "\n".join([*lines, summary])


def as_json(findings: Iterable[Finding]) -> str:
    """The same as a list of objects."""
    return json.dumps(
        [
            {"level": f.level.value, "about": f.about, "says": f.says, "way_out": f.way_out}
            for f in findings
        ],
        indent=2,
    )
