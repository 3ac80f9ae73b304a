"""The kinds of models, each a module with ``SPECS`` and ``examine(spec, folder) -> Outcome``."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.zoo import audio, images, pooling, text
from tests.zoo.build import Spec
from tests.zoo.judge import ENDED, Outcome
from tests.zoo.run import Failed, forked

KINDS = {"text": text, "images": images, "audio": audio, "pooling": pooling}
SECONDS = 900  # for one architecture: a few engines


def find(name: str) -> tuple[str, Spec]:
    """The kind of an architecture and its Spec."""
    for kind, module in KINDS.items():
        for spec in module.SPECS:
            if spec.name == name:
                return kind, spec
    raise KeyError(f"{name} is in no table of the zoo.")


def examine(name: str) -> Outcome:
    """The outcome of one architecture, found in a forked process."""
    kind, spec = find(name)
    with tempfile.TemporaryDirectory() as folder:
        try:
            outcome: Outcome = forked(KINDS[kind].examine, spec, Path(folder), seconds=SECONDS)
        except Failed as failed:
            return Outcome(ENDED, f"the zoo itself: {failed}"[:300], where=failed.where)
    return outcome
