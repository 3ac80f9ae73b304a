"""What every runner speaks: one JSON object per line on stdin, one answer per line on stdout.

The first line is the settings; the answer says how long importing and constructing took. Each
further line is one piece of work, answered when it is done; the end of stdin ends the runner. An
exception is answered as ``{"error": ...}`` and the next line is read. Anything that libraries print
to stdout goes to stderr instead. Standard library only: runners live in the peers' environments.
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Engine(Protocol):
    """A constructed peer."""

    versions: dict[str, str]

    def generate(self, prompts: list[list[int]], outputs: int) -> list[list[int]]:
        """Greedy tokens, exactly ``outputs`` of each prompt, all prompts at once; no early end."""
        ...

    def text(self, tokens: list[int]) -> str:
        """The text of tokens; empty where the model has no tokenizer."""
        ...


class Encoder(Protocol):
    """A constructed peer that embeds."""

    versions: dict[str, str]

    def embed(self, texts: list[list[int]]) -> list[list[float]]:
        """The vector of each text, all texts at once."""
        ...


def answer_requests(start: Callable[[dict[str, Any]], Any], answer: Callable[..., Any]) -> None:
    """``start(settings)`` once, then ``answer(started, request)`` for each further line."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def guarded(function: Callable[[], dict[str, Any]]) -> bool:
        try:
            reply = function()
        except Exception as error:
            reply = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        return "error" not in reply

    requests: Iterator[dict[str, Any]] = map(json.loads, sys.stdin)
    started: dict[str, Any] = {}

    def begin() -> dict[str, Any]:
        started["engine"], reply = start(next(requests))
        return reply

    if guarded(begin):
        for request in requests:
            guarded(functools.partial(answer, started["engine"], request))


def run_engine(load: Callable[[], Any], construct: Callable[[Any, dict[str, Any]], Any]) -> None:
    """Serve an Engine or Encoder: ``load()`` imports, ``construct(imported, settings)`` does the
    rest."""

    def start(settings: dict[str, Any]) -> tuple[Bench, dict[str, Any]]:
        begin = time.perf_counter()
        modules = load()
        imported = time.perf_counter()
        engine = construct(modules, settings)
        reply = {
            "import_s": imported - begin,
            "construct_s": time.perf_counter() - imported,
            "versions": engine.versions,
        }
        return Bench(engine, settings), reply

    answer_requests(start, lambda bench, request: bench.answer(request))


class Bench:
    """The works of one engine. Prompts are random and new each time: no prefix cache can help.

    With ``settings["cpu_time"]`` seconds are those of the process's threads, not of the clock.
    """

    def __init__(self, engine: Any, settings: dict[str, Any]) -> None:
        self.engine = engine
        self.vocab_size = settings["vocab_size"]
        self.known: list[list[int]] = []
        self.clock = time.process_time if settings.get("cpu_time") else time.perf_counter

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["kind"] == "greedy":
            (tokens,) = self.engine.generate([request["tokens"]], request["outputs"])
            return {"tokens": tokens, "text": self.engine.text(tokens)}
        if request["kind"] == "vectors":
            return {"vectors": self.engine.embed(request["texts"])}
        measure = getattr(self, request["kind"])
        sizes = request["sizes"]
        return {"values": [measure(*sizes) for _ in range(request["repeats"])]}

    def first(self, inputs: int) -> float:
        """Seconds of the very first request, one token out; start-up ends with it."""
        return self.seconds(1, inputs, 1)

    def decode(self, inputs: int, outputs: int) -> float:
        """Tokens per second of one request after its first token."""
        return 1 / self.step(1, inputs, outputs)

    def step(self, requests: int, inputs: int, outputs: int) -> float:
        """Seconds of a step that gives every request one token more."""
        first = self.seconds(requests, inputs, 1)
        return self.rest(first, self.seconds(requests, inputs, outputs), outputs)

    def rest(self, first: float, all_outputs: float, outputs: int) -> float:
        """Seconds of each token but the first."""
        if all_outputs <= first:
            raise ValueError(f"one token took as long as {outputs}: ask for more or for less noise")
        return (all_outputs - first) / (outputs - 1)

    def step_after_known(self, requests: int, inputs: int, outputs: int) -> float:
        """As ``step``, after prompts that stay the same and are in the engine's memory, if it keeps
        them: whatever came between, they are computed before the time."""
        if any(len(prompt) != inputs for prompt in self.known):
            self.known = []
        self.known += self.prompts(requests - len(self.known), inputs)
        prompts = self.known[:requests]
        self.seconds_of(prompts, 1)
        first = self.seconds_of(prompts, 1)
        return self.rest(first, self.seconds_of(prompts, outputs), outputs)

    def first_after_forgetting(self, inputs: int) -> float:
        """Seconds until the first token of a prompt that the engine has computed before, and has
        not in its memory any more."""
        prompts = self.prompts(1, inputs)
        self.seconds_of(prompts, 4)
        self.engine.forget()
        return self.seconds_of(prompts, 1)

    def prompt(self, inputs: int) -> float:
        """Prompt tokens per second until the first token is out."""
        return inputs / self.seconds(1, inputs, 1)

    def batch(self, requests: int, inputs: int, outputs: int) -> float:
        """Output tokens per second over all requests, their prompts included in the time."""
        return requests * outputs / self.seconds(requests, inputs, outputs)

    def embed(self, lengths: list[int], batch: int) -> float:
        """Tokens embedded per second, of texts of these lengths: all at once where ``batch`` is 0,
        else sorted by length and so many at a time."""
        texts = [text for length in lengths for text in self.prompts(1, length)]
        begin = self.clock()
        if batch:
            texts.sort(key=len)
        step = batch or len(texts)
        parts = (texts[first : first + step] for first in range(0, len(texts), step))
        found = sum(len(self.engine.embed(part)) for part in parts)
        seconds = self.clock() - begin
        if found != len(lengths):
            raise ValueError(f"{len(lengths)} texts gave {found} vectors")
        return sum(lengths) / seconds

    def picture(self, rows: int, columns: int) -> float:
        """Seconds of a request with a picture of noise, one token out."""
        return self.seconds_until_seen("image", rows, columns)

    def sound(self, seconds: int) -> float:
        """Seconds of a request with so many seconds of noise, one token out."""
        return self.seconds_until_seen("audio", seconds)

    def seconds_until_seen(self, medium: str, *sizes: int) -> float:
        noise = self.engine.noise(medium, *sizes)
        begin = self.clock()
        self.engine.see(noise)
        return self.clock() - begin

    def prompts(self, requests: int, inputs: int) -> list[list[int]]:
        # Neither the special tokens at the beginning of vocabularies nor those at the end.
        last = min(self.vocab_size, 40000) - 1
        return [[random.randint(100, last) for _ in range(inputs)] for _ in range(requests)]

    def seconds(self, requests: int, inputs: int, outputs: int) -> float:
        return self.seconds_of(self.prompts(requests, inputs), outputs)

    def seconds_of(self, prompts: list[list[int]], outputs: int) -> float:
        begin = self.clock()
        results = self.engine.generate(prompts, outputs)
        seconds = self.clock() - begin
        lengths = [len(result) for result in results]
        if lengths != [outputs] * len(prompts):
            raise ValueError(f"{len(prompts)} requests of {outputs} tokens gave {lengths} tokens")
        return seconds
