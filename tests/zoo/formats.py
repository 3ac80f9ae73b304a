"""``python -m tests.zoo.formats``: the text models in every dtype, quantized while they load, with
every KV cache, on two instruction sets; docs/model_formats.md.

Far more engines than a test run has time for, so a command of its own.  In each, answers alone and
together must be the same bit for bit, and the error of a prompt's log-probabilities must be what
so much rounding has to cost this model: at most FACTOR times that of ``transformers`` in fp32 whose
weights carry random noise of the same size.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.zoo import judge, run, text
from tests.zoo.build import Spec, build
from tests.zoo.run import Answer, Failed, Prompt, Round

# What rounding a weight or an activation to it costs, relative to its size: root of mean squares,
# for normally distributed values and the groups in use.
DTYPES = {"bfloat16": 0.004, "float16": 0.0005}  # of several roundings one after the other
QUANTIZATIONS = {"": 0.0, "cpu_int8": 0.007, "cpu_int4": 0.09}
KV_CACHES = {"auto": 0.0, "fp8": 0.03, "int8_per_token_head": 0.007}
FACTOR = 2.0
DRAWS = 5  # of noise, the worst counts: a router may or may not choose another expert
# The host refuses fp16 for some models, and some do not pass the cache's type on to their layers.
NOT_FOR_IT = re.compile("does not support float16|does not reach the layers")
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
        parts = DTYPES[self.dtype], QUANTIZATIONS[self.quantization], KV_CACHES[self.kv_cache]
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


FORMATS = tuple(itertools.starmap(Format, itertools.product(DTYPES, QUANTIZATIONS, KV_CACHES)))


def rounds(prompts: list[Prompt]) -> list[Round]:
    """Alone, together, again from the cache; the step is replayed by then."""
    sent = [*([prompt] for prompt in prompts[:3]), prompts, [prompts[4], prompts[1]], prompts]
    return [Round(tuple(asked), text.GREEDY) for asked in sent]


def examine(spec: Spec, folder: Path) -> dict[str, tuple[float, str]]:
    """By the format's name: the error in standard deviations of the log-probabilities, and what is
    wrong if anything is.  Runs in a process of its own."""
    model = build(spec, folder)
    prompts = text.prompts()
    scored = prompts[:3]
    exact = _logprobs(model, scored)
    expected = {
        noise: max(
            _error(_logprobs(_with_noise(model, noise, seed), scored), exact)
            for seed in range(DRAWS)
        )
        for noise in sorted({form.noise for form in FORMATS})
    }
    found = {}
    for form in FORMATS:
        asked = [*rounds(prompts), *(Round((prompt,), text.SCORED) for prompt in scored)]
        options = {**form.options(), **(text.WHOLE_PROMPTS if spec.whole_prompts else {})}
        try:
            answers = run.forked(run.generate, folder, options, asked)
        except Failed as failed:
            said = f"{failed.kind}: {failed.message.splitlines()[0][:300]}"
            found[form.name] = math.nan, "" if NOT_FOR_IT.search(said) else said
            continue
        found[form.name] = _judge(spec, answers, exact, expected[form.noise])
    return found


def _judge(
    spec: Spec, answers: list[list[Answer]], exact: torch.Tensor, expected: float
) -> tuple[float, str]:
    sent = rounds(text.prompts())
    greedy, scored = answers[: len(sent)], answers[len(sent) :]
    faults = judge.differences(sent, {"recorded": greedy}, cached=not spec.whole_prompts)
    ours = torch.tensor([value for (answer,) in scored for value in answer.prompt_logprobs])
    error = _error(ours, exact)
    if not error <= FACTOR * expected:
        faults.append(f"error {error:.3g}, noise of that size costs {expected:.3g}")
    return error, "; ".join(faults)


def _logprobs(model: torch.nn.Module, prompts: list[Prompt]) -> torch.Tensor:
    return torch.cat([judge.prompt_logprobs(model, prompt) for prompt in prompts])


def _error(values: torch.Tensor, exact: torch.Tensor) -> float:
    """In standard deviations of ``exact``."""
    return judge.rms(values - exact) / float(exact.std())


@torch.no_grad()
def _with_noise(model: torch.nn.Module, noise: float, seed: int) -> torch.nn.Module:
    """A copy each of whose matrices, but embeddings, is off by ``noise`` of its size."""
    noisy = copy.deepcopy(model)
    tables = {
        id(parameter)
        for module in noisy.modules()
        if isinstance(module, torch.nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    torch.manual_seed(seed)
    for parameter in noisy.parameters():
        if parameter.dim() >= 2 and id(parameter) not in tables:
            size = parameter.square().mean().sqrt()
            parameter.add_(torch.randn_like(parameter) * size, alpha=noise)
    return noisy


def _examine_all(names: list[str], minutes: float) -> None:
    """On this process's instruction set: one JSON line per model to standard output."""
    run.prepare()
    end = time.monotonic() + 60 * minutes
    specs = (spec for spec in text.SPECS if spec.name in names)
    for spec in sorted(specs, key=lambda spec: not spec.selected):
        if time.monotonic() > end:
            break
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = run.forked(examine, spec, Path(folder), seconds=SECONDS)
            except Failed as failed:
                fault = math.nan, f"the zoo itself: {failed}"[:300]
                found = {form.name: fault for form in FORMATS}
        print(json.dumps([spec.name, found]), flush=True)
        faults = [f"{name}: {fault}" for name, (_, fault) in found.items() if fault]
        print(spec.name, "; ".join(faults) or "right", file=sys.stderr, flush=True)


def _on(isa: str, names: list[str], minutes: float) -> dict[str, dict[str, tuple[float, str]]]:
    """What a process on that instruction set finds, by architecture."""
    env = {**os.environ, "CPU_BACKEND_ISA": isa}
    command = [sys.executable, "-m", "tests.zoo.formats", "--examine"]
    command += ["--minutes", str(minutes), *names]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('["')]
    return dict(map(json.loads, lines))


HEAD = """\
# Which models run in which formats

The text models of [the other table](models.md) that are right there, small and random, each in bf16
and fp16, as they are and quantized while they load (`--quantization cpu_int8`, `cpu_int4`), with a
KV cache of the model's dtype, of fp8 and of 8-bit integers (`int8_per_token_head`), on {isas}:
{engines} engines each. Made by `python -m tests.zoo.formats --write docs/model_formats.md`.

Everywhere answers alone, together with others and from the prefix cache were the same bit for bit,
unless a fault below says otherwise. Cells are the error of a prompt's log-probabilities against
`transformers` in fp32, in their own standard deviations and without the worst 2 % of tokens: the
larger one of both instruction sets, with the model's dtype / fp8 / 8-bit integers in the KV cache;
— where the host refuses fp16 for a model, or such a cache is refused for it. An error is a fault
when it is more than {factor:g} times what random noise as large as the format's roundings costs
`transformers` itself, the worst of {draws} draws. Random weights exaggerate: a trained model
loses far less ([what rounding costs](quantization.md#what-rounding-costs)).
"""


def page(by_isa: dict[str, dict[str, dict[str, tuple[float, str]]]]) -> str:
    """The page in Markdown."""
    isas = " and ".join(by_isa)
    head = HEAD.format(isas=isas, engines=len(FORMATS) * len(by_isa), factor=FACTOR, draws=DRAWS)
    columns = list(itertools.product(DTYPES, QUANTIZATIONS))
    titles = [" ".join(filter(None, column)) for column in columns]
    lines = [f"| model | {' | '.join(titles)} |", f"| --- {'| --- ' * len(titles)}|"]
    faults = []
    specs = [spec for spec in text.SPECS if all(spec.name in found for found in by_isa.values())]
    for spec in sorted(specs, key=lambda spec: spec.models.lower()):
        found = [by_name[spec.name] for by_name in by_isa.values()]
        cells = [
            " / ".join(
                _cell([each[Format(*column, kv).name][0] for each in found]) for kv in KV_CACHES
            )
            for column in columns
        ]
        lines.append(f"| {spec.models} | {' | '.join(cells)} |")
        for isa, each in zip(by_isa, found, strict=True):
            faults += [
                f"- {spec.models}, {isa}, {name}: {fault}"
                for name, (_, fault) in each.items()
                if fault
            ]
    listed = ["## Faults", "", *faults] if faults else ["No faults."]
    rest = [spec.models for spec in _runnable() if spec not in specs]
    lines += ["", f"{len(specs)} models. Not tried yet: {', '.join(rest) or 'none'}."]
    return "\n".join([head, *lines, "", *listed, ""])


def _runnable() -> list[Spec]:
    return [spec for spec in text.SPECS if not spec.refused and not spec.host]


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
    parser.add_argument("--write", type=Path, help="write what was found to this file")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no other model after so long"
    )
    parser.add_argument("--examine", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.names or [spec.name for spec in _runnable()]
    if arguments.examine:
        _examine_all(names, arguments.minutes)
        return 0
    with ThreadPoolExecutor() as pool:
        isas = _isas()
        found_on = pool.map(lambda isa: _on(isa, names, arguments.minutes), isas)
        by_isa = dict(zip(isas, found_on, strict=True))
    if arguments.write:
        arguments.write.write_text(page(by_isa))
    found = [each for by_name in by_isa.values() for each in by_name.values()]
    return int(any(fault for each in found for _, fault in each.values()))


if __name__ == "__main__":
    sys.exit(main())
