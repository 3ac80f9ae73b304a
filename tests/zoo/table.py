"""The page docs/models.md: which models run, as the zoo found it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cpu_backend.architectures import NOT_ON_CPUS
from cpu_backend.host import model_classes
from cpu_backend.only_with import LIMITS
from tests.zoo import kinds
from tests.zoo.build import Spec
from tests.zoo.judge import HOST, REFUSED, RIGHT, Outcome

HEAD = """\
# Which models run

Every architecture of the host that `transformers` can build small, with random weights: a few
layers, odd sizes, grouped heads, windows shorter than the prompts. Made by
`python -m tests.zoo --write docs/models.md`; `tests/zoo` says how to add one.

- **right**: in fp32 every token is the one that `transformers` would choose (no further below its
  best logit than 0.02 standard deviations, which is rounding), and a prompt's log-probabilities
  are its own twice as closely; however the request came: alone, together with others, in chunks,
  from the prefix cache, with recorded steps and eager, tokens and log-probabilities are the same
  bit for bit. In bf16 the error of a prompt's log-probabilities against fp32, without the worst
  2 % of its tokens (5 % in mixtures, where rounding makes a router choose another expert), is at
  most twice that of `transformers` in bf16.
- Images, videos and sounds are random ones of three sizes, one in a prompt and two where the model
  allows it, also different ones of the same size in the same words; log-probabilities have to
  differ from those of others.  The notes say which of them were compared; a server that takes
  further ones says so when it starts.  Videos are frames at two a second, as many as they have.
  Most image models need torchvision, which neither the host nor this backend brings:
  `pip install torchvision==0.28.0 --no-deps --index-url https://download.pytorch.org/whl/cpu`,
  beside torch 2.14 torchvision 0.29.0.
  Granite Speech needs torchaudio, from the same index.
- [Other dtypes, quantizations and KV caches](model_formats.md) have a table of their own.
- **refused**: the server ends at start, before weights are read, with the sentence in the notes.
- **host**: the host itself cannot run it on a CPU; the notes show what it says.
- **wrong**, **ended**: a defect of this backend, and its test fails; do not use the model yet.
"""
FIELDS = """\
## Fields of config.json

A small model has one config.json, and those of people have others: `python -m tests.zoo.fields`
gives each field of each model another value, one at a time, and where `transformers` then answers
otherwise, the host has to. Where it did not, a model with that value is refused now:
"""
ALLOWED = (RIGHT, REFUSED, HOST)
NOT_COMPARED = "Not compared yet, which a server says when it starts"


class Row(NamedTuple):
    """What the cells of a row say; their names stand above them."""

    model: str
    architecture: str
    state: str
    dtypes: str
    compared: str
    notes: str


def is_defect(outcome: Outcome) -> bool:
    """Whether an architecture may not have this outcome."""
    return outcome.state not in ALLOWED


def agrees(spec: Spec, outcome: Outcome) -> bool:
    """Whether the outcome is the Spec's: no model may stop running, nor start to run without being
    compared, unseen."""
    if outcome.state == REFUSED:
        return bool(spec.refused) and spec.refused in outcome.note
    if outcome.state == HOST:
        return bool(spec.host)
    return outcome.state == RIGHT and not (spec.refused or spec.host)


def page(outcomes: dict[str, Outcome], before: str = "") -> str:
    """The page in Markdown; ``outcomes`` by name of the architecture.  Others keep their row of the
    page ``before``."""
    parts = [HEAD]
    kept = {row.architecture: row for row in _read(before)}
    tried = {spec.name for module in kinds.KINDS.values() for spec in module.SPECS}
    for kind, module in kinds.KINDS.items():
        rows = [
            _row(spec, outcomes[spec.name]) if spec.name in outcomes else kept[f"`{spec.name}`"]
            for spec in module.SPECS
            if spec.name in outcomes or f"`{spec.name}`" in kept
        ]
        if rows:
            parts += [f"## {kind.capitalize()}\n", f"{_summary(rows)}\n", f"{_table(rows)}\n"]
            parts += _absent(set(module.registered()) - tried)
    return "\n".join([*parts, FIELDS, *_limits()])


def _limits() -> Iterator[str]:
    for limit in LIMITS:
        right = " or ".join(f"`{value}`" for value in limit.values) or "nothing"
        classes = ", ".join(f"`{name}`" for name in limit.classes.split()) or "any class"
        unless = "unless `{}` is `{}`, ".format(*limit.unless) if limit.unless else ""
        task = "to generate, " if limit.generating else ""
        yield f"- `{limit.field}` other than {right}, {unless}{task}of {classes}"
    yield ""


def _absent(names: set[str]) -> Iterator[str]:
    """What the host knows besides."""
    import transformers

    for_gpus = set(filter(model_classes.is_for_gpus, names))
    wrong = names & NOT_ON_CPUS.keys()
    names = names - for_gpus - wrong
    known = names.intersection(dir(transformers))
    for some, words in (
        (for_gpus, "Refused by name, too, because vLLM has them for GPUs alone"),
        (wrong, "Refused by name, too, because vLLM would answer wrongly"),
        (known, f"{NOT_COMPARED}, though `transformers` has such a class"),
        (names - known, f"{NOT_COMPARED}, and `transformers` has no class of that name"),
    ):
        if some:
            yield f"{words}: {', '.join(f'`{name}`' for name in sorted(some))}.\n"


def _summary(rows: list[Row]) -> str:
    states = [row.state for row in rows]
    counts = ", ".join(
        f"{states.count(state)} {state}" for state in sorted(set(states), key=_order)
    )
    return f"{len(rows)} architectures: {counts}."


def _order(state: str) -> int:
    return [*ALLOWED, state].index(state)


def _table(rows: Iterable[Row]) -> str:
    lines = [
        Row._fields,
        ["---"] * len(Row._fields),
        *sorted(rows, key=lambda row: row.model.lower()),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _row(spec: Spec, outcome: Outcome) -> Row:
    return Row(
        spec.models,
        f"`{spec.name}`",
        outcome.state,
        ", ".join(outcome.dtypes),
        ", ".join(outcome.compared),
        outcome.note.replace("|", r"\|"),
    )


def _read(page: str) -> Iterator[Row]:
    """The rows of all tables."""
    for line in page.splitlines():
        if line.startswith("| ") and "`" in line:
            yield Row(*re.split(r" \| ", line.removeprefix("| ").removesuffix(" |")))
