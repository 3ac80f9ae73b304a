"""What rounding costs a model: its answers in a format, held against ``transformers`` in fp32.

Answers alone and together must be the same bit for bit, and the error of a prompt's
log-probabilities must be what so much rounding has to cost this model: at most FACTOR times that of
``transformers`` in fp32 whose weights carry random noise of the same size, or as much times its own
error in that dtype.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.zoo import judge, mixed, run, text
from tests.zoo.build import Spec, build
from tests.zoo.elsewhere import run_engine
from tests.zoo.media import MediaSpec
from tests.zoo.run import Failed, Round

FACTOR = 2.0
# Of the prompt that has to come from the cache: a recurrent model's prefixes are found at multiples
# of up to 512 tokens.
LONG = 700


# By a format's name: the error in standard deviations of the log-probabilities, and what is wrong
# if anything is.
Found = dict[str, tuple[float, str]]


@dataclass(frozen=True)
class Subject:
    """A model and what it is asked.

    model: ``transformers``' in fp32; prompts: six requests; long: one of which a part has to come
    from the cache where the host keeps prefixes (``cached``); logprobs: of a request's tokens by a
    variant of the model; options: what the engine is told of it.
    """

    model: torch.nn.Module
    prompts: Sequence[Any]
    long: Any
    logprobs: Callable[[Any, Any], torch.Tensor]
    options: dict[str, Any]
    cached: bool

    def rounds(self) -> list[Round]:
        """Alone, together, again from the cache; the step is replayed by then."""
        p = self.prompts
        sent = [*([prompt] for prompt in p[:3]), p, [p[4], p[1]], p]
        if not text.EMULATED:
            sent += [[self.long], [self.long]]
        return [Round(tuple(asked), text.GREEDY) for asked in sent]

    def all_logprobs(self, model: Any) -> torch.Tensor:
        """Of the prompts whose tokens are scored, one after the other."""
        return torch.cat([self.logprobs(model, prompt) for prompt in self.scored])

    @property
    def scored(self) -> Sequence[Any]:
        return self.prompts[:3]


def subject(spec: Spec, folder: Path) -> Subject:
    """Built in ``folder``."""
    cached = spec.cached and not text.EMULATED  # the long prompt is not asked then
    if isinstance(spec, MediaSpec):
        processor = spec.processor(folder)
        score = functools.partial(mixed.prompt_logprobs, processor=processor)
        cases, options = spec.cases, mixed.options(spec)
        return Subject(build(spec, folder), cases, cases[2], score, options, cached)
    prompts = text.prompts()
    long = (prompts[2] * 3)[:LONG]
    options = {"max_model_len": 1024}
    model = build(spec, folder)
    return Subject(model, prompts, long, judge.prompt_logprobs, options, cached)


class Judge:
    """Builds a model in a folder and judges engines that run it, or a quantized copy."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        self.asked = subject(spec, folder)
        model = self.asked.model
        self._exact = self.asked.all_logprobs(model)
        self._without = judge.left_out(model)
        self._cost = functools.cache(self._cost_of_noise)
        self._own = functools.cache(self._cost_of_dtype)

    def examine(self, folder: Path, options: dict[str, Any], noise: float) -> tuple[float, str]:
        """The error of the model in ``folder`` as an engine with these options runs it, NaN if it
        does not, and what is wrong; noise: relative size of all roundings together."""
        sent = self.asked.rounds()
        scored = [Round((prompt,), text.SCORED) for prompt in self.asked.scored]
        options = {**options, **self.asked.options}
        try:
            answers = run_engine(run.generate, folder, options, sent + scored)
        except Failed as failed:
            return math.nan, f"{failed.kind}: {failed.message.splitlines()[0][:300]}"
        greedy, found = answers[: len(sent)], answers[len(sent) :]
        faults = judge.differences(sent, {"recorded": greedy}, cached=self.asked.cached)
        ours = torch.tensor([value for (answer,) in found for value in answer.prompt_logprobs])
        error, allowed = self._error(ours), 0.0
        costs = self._costs(noise, options["dtype"])
        while error > FACTOR * allowed and (cost := next(costs, None)) is not None:
            allowed = max(allowed, cost)
        if not error <= FACTOR * allowed:
            faults.append(f"error {error:.3g}, noise of that size costs {allowed:.3g}")
        return error, "; ".join(faults)

    def _costs(self, noise: float, dtype: str) -> Iterator[float]:
        """One after the other, because the first is mostly enough."""
        yield from (self._cost(noise, draw) for draw in range(judge.DRAWS))
        yield self._own(dtype)

    def _cost_of_noise(self, noise: float, seed: int) -> float:
        return self._error(self.asked.all_logprobs(judge.with_noise(self.asked.model, noise, seed)))

    def _cost_of_dtype(self, dtype: str) -> float:
        model = copy.deepcopy(self.asked.model).to(getattr(torch, dtype))
        return self._error(self.asked.all_logprobs(model))

    def _error(self, logprobs: torch.Tensor) -> float:
        """In standard deviations of the exact ones."""
        return judge.rms(logprobs - self._exact, self._without) / float(self._exact.std())
