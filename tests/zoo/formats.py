"""``python -m tests.zoo.formats``: models of text, images and sounds in every dtype, quantized
while they load, with every KV cache, on two instruction sets; docs/model_formats.md.

Far more engines than a test run has time for, so a command of its own; rounding.py says how they
are judged.

The page is written after each model, and is where the next run goes on: models in its table are
examined again only when they are named.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import tools
from tests.zoo import audio, images, judge, run, text
from tests.zoo.build import Spec
from tests.zoo.rounding import FACTOR, Found, Judge
from tests.zoo.run import Failed

# As judge.QUANTIZATIONS.
DTYPES = {"bfloat16": 0.004, "float16": 0.0005}  # of several roundings one after the other
KV_CACHES = {"auto": 0.0, "fp8": 0.03, "int8_per_token_head": 0.007}
# The host refuses fp16 for some models; some do not pass the cache's type on to their layers.
NOT_FOR_IT = re.compile(
    "does not support float16|does not reach the layers|not supported with sparse attention"
)
SECONDS = 1800  # for one model: 18 engines


@dataclass(frozen=True)
class Format:
    """What an engine keeps weights, activations and the KV cache in."""

    dtype: str
    quantization: str
    kv_cache: str

    @property
    def name(self) -> str:
        """For lists of what failed."""
        return " ".join(filter(None, (self.dtype, self.quantization, self.kv_cache)))

    @property
    def noise(self) -> float:
        """Relative size of all its roundings together."""
        parts = DTYPES[self.dtype], judge.QUANTIZATIONS[self.quantization], KV_CACHES[self.kv_cache]
        return math.hypot(*parts)

    def options(self) -> dict[str, Any]:
        """For the engine."""
        quantization = {"quantization": self.quantization} if self.quantization else {}
        return {
            **text.CHUNKED,
            **quantization,
            "dtype": self.dtype,
            "kv_cache_dtype": self.kv_cache,
        }


FORMATS = tuple(
    itertools.starmap(Format, itertools.product(DTYPES, judge.QUANTIZATIONS, KV_CACHES))
)
_NAMES = [form.name for form in FORMATS]


def examine(spec: Spec, forms: Sequence[Format], folder: Path) -> Found:
    """These formats of one model.  Runs in a process of its own."""
    judged = Judge(spec, folder)
    found = {}
    for form in forms:
        error, fault = judged.examine(folder, form.options(), form.noise)
        found[form.name] = error, "" if NOT_FOR_IT.search(fault) else fault
    return found


def _examine_all(names: list[str], forms: Sequence[Format], minutes: float) -> None:
    """On this process's instruction set: one JSON line per model to standard output."""
    run.prepare()
    end = time.monotonic() + 60 * minutes
    specs = {spec.name: spec for spec in runnable()}
    for name in names:
        if time.monotonic() > end:
            break
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = run.forked(examine, specs[name], forms, Path(folder), seconds=SECONDS)
            except Failed as failed:
                fault = math.nan, f"the zoo itself: {failed}"[:300]
                found = {form.name: fault for form in forms}
        print(json.dumps([name, found]), flush=True)


def _start(isa: str, names: list[str], minutes: float) -> subprocess.Popen[str]:
    """A process on that instruction set, which prints what it finds, model by model."""
    env = {**os.environ, "CPU_BACKEND_ISA": isa}
    command = [sys.executable, "-m", "tests.zoo.formats", *names]
    command += ["--examine", "--minutes", str(minutes)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def _answers(process: subprocess.Popen[str]) -> Iterator[tuple[str, Found]]:
    assert process.stdout
    for line in process.stdout:
        if line.startswith('["'):
            name, found = json.loads(line)
            yield name, found
    if process.wait():
        raise SystemExit("A process of the zoo ended early; its own words are above.")


HEAD = """\
# Which models run in which formats

The models of [the other page](models.md) for text, images and sounds that are right there, small
and random, each in bf16 and fp16, as they are and quantized while they load
(`--quantization cpu_int8`, `cpu_int4`), with a KV cache of the model's dtype, of fp8 and of 8-bit
integers (`int8_per_token_head`), on {isas}: {engines} engines each.
Made by `python -m tests.zoo.formats --write docs/model_formats.md`.

Everywhere answers alone, together with others and from the prefix cache were the same bit for bit,
unless a fault below says otherwise. Cells are the error of a prompt's log-probabilities against
`transformers` in fp32, in their own standard deviations and without the worst 2 % of tokens (5 % in
mixtures, where rounding chooses other experts at some of them): the larger one of both instruction
sets, with the model's dtype / fp8 / 8-bit integers in the KV cache; — where the host refuses fp16
for a model, or such a cache is refused for it. An error is a fault
when it is more than {factor:g} times what random noise as large as the format's roundings costs
`transformers` itself, the worst of {draws} draws, and than what `transformers` loses in that dtype.
Random weights exaggerate: a trained model loses far less
([what rounding costs](quantization.md#what-rounding-costs)).
"""


@dataclass(frozen=True)
class Row:
    """A model's lines on the page."""

    cells: str
    faults: tuple[str, ...] = ()


def row(spec: Spec, by_isa: dict[str, Found]) -> Row:
    """What was found of a model on each instruction set."""
    columns = itertools.product(DTYPES, judge.QUANTIZATIONS)
    cells = [
        " / ".join(
            _cell([found[Format(*column, kv).name][0] for found in by_isa.values()])
            for kv in KV_CACHES
        )
        for column in columns
    ]
    faults = [
        f"- {spec.models}, {isa}, {name}: {fault}"
        for isa, found in by_isa.items()
        for name, (_, fault) in found.items()
        if fault
    ]
    return Row(f"| {spec.models} | {' | '.join(cells)} |", tuple(faults))


def _head(isas: list[str]) -> str:
    engines = len(FORMATS) * len(isas)
    return HEAD.format(isas=" and ".join(isas), engines=engines, factor=FACTOR, draws=judge.DRAWS)


def page(isas: list[str], rows: dict[str, Row]) -> str:
    """The page in Markdown, of the rows by architecture."""
    columns = list(itertools.product(DTYPES, judge.QUANTIZATIONS))
    titles = [" ".join(filter(None, column)) for column in columns]
    lines = [f"| model | {' | '.join(titles)} |", f"| --- {'| --- ' * len(titles)}|"]
    specs = sorted(runnable(), key=lambda spec: spec.models.lower())
    done = [rows[spec.name] for spec in specs if spec.name in rows]
    rest = [spec.models for spec in specs if spec.name not in rows]
    lines += [each.cells for each in done]
    lines += ["", f"{len(done)} models. Not tried yet: {', '.join(rest) or 'none'}."]
    faults = [fault for each in done for fault in each.faults]
    listed = ["## Faults", "", *faults] if faults else ["No faults."]
    return "\n".join([_head(isas), *lines, "", *listed, ""])


def rows_of(written: str, isas: list[str]) -> dict[str, Row]:
    """The rows of a page by architecture, to go on from."""
    if not written.startswith(_head(isas)):
        raise SystemExit(
            f"The page is not of {' and '.join(isas)} or of other rules: give --write another file."
        )
    lines = written.splitlines()
    rows = {}
    for spec in runnable():
        cells = [line for line in lines if line.startswith(f"| {spec.models} |")]
        begun = tuple(f"- {spec.models}, {isa}, " for isa in isas)
        faults = [line for line in lines if line.startswith(begun)]
        if cells:
            rows[spec.name] = Row(cells[0], tuple(faults))
    return rows


def runnable() -> list[Spec]:
    specs = (*text.SPECS, *images.SPECS, *audio.SPECS)
    return [spec for spec in specs if not spec.refused and not spec.host]


def _cell(errors: list[float]) -> str:
    return "—" if any(map(math.isnan, errors)) else f"{max(errors):.2g}"


def _isas() -> list[str]:
    """The instruction set that most CPUs have, and this machine's best."""
    from cpu_backend import ops

    library = ops.load()
    return [isa for isa in ("avx2",) if isa in library.runnable] + [library.target]


def main() -> int:
    """Examine on both instruction sets at once, and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.formats", description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; all that run if none is named")
    parser.add_argument("--write", type=Path, help="write what was found to this file, and go on")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no other model after so long"
    )
    parser.add_argument("--examine", nargs="*", metavar="FORMAT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.examine is not None:
        forms = [form for form in FORMATS if form.name in (arguments.examine or _NAMES)]
        _examine_all(arguments.names, forms, arguments.minutes)
        return 0
    isas = _isas()
    page_file = arguments.write
    written = page_file.read_text() if page_file and page_file.exists() else page(isas, {})
    rows = rows_of(written, isas)
    specs = {spec.name: spec for spec in sorted(runnable(), key=lambda spec: not spec.selected)}
    names = arguments.names or [
        name
        for name, spec in specs.items()
        if name not in rows and all(map(tools.is_there, spec.needs))
    ]
    unknown = [name for name in names if name not in specs]
    if unknown:
        parser.error(f"no such model that runs is called {unknown[0]}; tests/zoo lists them")
    processes = [_start(isa, names, arguments.minutes) for isa in isas]
    faulty = False
    for pair in zip(*map(_answers, processes), strict=False):
        name = pair[0][0]
        rows[name] = row(specs[name], dict(zip(isas, (found for _, found in pair), strict=True)))
        print(name, *(rows[name].faults or ["right"]), sep="\n  ", flush=True)
        faulty = faulty or bool(rows[name].faults)
        if page_file:
            page_file.write_text(page(isas, rows))
    return int(faulty)


if __name__ == "__main__":
    sys.exit(main())
