"""The replica router simulated: throughput, latency and prefix hits for 1 to 1,000 replicas.

    python benchmarks/simulate_router.py [--replicas 1 10 100 1000] [--load 0.7] [--json FILE]

What is simulated is a number of engines with continuous batching, and the router's own policy
(:mod:`cpu_backend.ray_serve.prefix`, the code that runs in production) against two others.  A step
of an engine takes ``step + prompt tokens * prompt_token + requests * decode_token`` seconds; the
defaults are measured (docs/scaling.md says on what).  Requests are turns of conversations: each
turn's prompt is the whole conversation so far, after one of a few system prompts, and a new turn
comes when the last answer has been read.  ``--load`` is the share of what all engines could do if
no prefix were ever found.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from cpu_backend.ray_serve.prefix import PrefixTable, preference

CHUNK = 64  # tokens of a chunk here


@dataclass(frozen=True)
class Service:
    """Seconds of an engine's work, and its sizes in tokens and requests."""

    step: float = 0.004
    prompt_token: float = 0.0009
    decode_token: float = 0.0035
    cache_tokens: int = 100_000
    max_requests: int = 32
    max_step_tokens: int = 2048


@dataclass(frozen=True)
class Traffic:
    """Conversations; lengths in tokens, pauses in seconds."""

    systems: int = 8
    system_tokens: int = 512
    turns: int = 5
    user_tokens: int = 64
    answer_tokens: int = 64
    pause: float = 10.0


@dataclass
class Request:
    """One turn.  ``chain`` names its prompt's chunks; times are in seconds since the beginning."""

    conversation: int
    turn: int
    chain: list[int]
    prompt_tokens: int
    arrived: float
    to_compute: int = 0
    to_write: int = 0
    first: float = 0.0
    found: int = 0


@dataclass
class Engine:
    """Continuous batching: prompts in chunks, then one token per request and step."""

    service: Service
    cache: PrefixTable = field(default_factory=PrefixTable)
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    busy: bool = False

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.running)

    def step(self) -> tuple[float, list[Request]]:
        """Seconds of the next step, and the requests that write a token at its end."""
        service = self.service
        while self.waiting and len(self.running) < service.max_requests:
            request = self.waiting.pop(0)
            found = min(self.cache.matched(0, request.chain) * CHUNK, request.prompt_tokens - 1)
            request.found, request.to_compute = found, request.prompt_tokens - found
            self.cache.sent(0, request.chain)
            self.running.append(request)
        budget, computed = service.max_step_tokens, 0
        writing = []
        for request in self.running:
            if request.to_compute == 0:
                budget -= 1
                writing.append(request)
        decoding = len(writing)
        for request in self.running:
            if request.to_compute and budget > 0:
                part = min(budget, request.to_compute)
                request.to_compute -= part
                budget -= part
                computed += part
                if request.to_compute == 0:
                    writing.append(request)
        seconds = service.step + computed * service.prompt_token + decoding * service.decode_token
        return seconds, writing


class Simulation:
    """Events in the order of their time; ``policy`` chooses an engine for each request."""

    def __init__(
        self,
        replicas: int,
        policy: str,
        rate: float,
        seconds: float,
        service: Service,
        traffic: Traffic,
        busy_tokens: int,
        seed: int = 1,
    ) -> None:
        self.engines = [Engine(service) for _ in range(replicas)]
        for engine in self.engines:
            engine.cache.set_capacity(0, service.cache_tokens * 64 // CHUNK)
        self.policy, self.traffic, self.busy_tokens, self.seconds = (
            policy,
            traffic,
            busy_tokens,
            seconds,
        )
        self.table = PrefixTable()
        self.table.keep_only(range(replicas))
        for replica in range(replicas):
            self.table.set_capacity(replica, service.cache_tokens * 64 // CHUNK)
        self.loads = dict.fromkeys(range(replicas), 0)
        self.random = random.Random(seed)
        self.order = itertools.count()
        self.events: list[tuple[float, int, str, object]] = []
        self.finished: list[Request] = []
        self.ends: list[float] = []
        now = 0.0
        for conversation in itertools.count():
            now += self.random.expovariate(rate / traffic.turns)
            if now > seconds:
                break
            self._at(now, "turn", self._turn(conversation, 0, now))

    def _at(self, when: float, kind: str, what: object) -> None:
        heapq.heappush(self.events, (when, next(self.order), kind, what))

    def _turn(self, conversation: int, turn: int, now: float) -> Request:
        traffic = self.traffic
        system = conversation % traffic.systems
        own = traffic.user_tokens + turn * (traffic.user_tokens + traffic.answer_tokens)
        chain = [hash(("system", system, i)) for i in range(traffic.system_tokens // CHUNK)]
        chain += [hash(("own", conversation, i)) for i in range(own // CHUNK)]
        request = Request(conversation, turn, chain, traffic.system_tokens + own, now)
        request.to_write = traffic.answer_tokens
        return request

    def _choose(self, request: Request) -> int:
        if self.policy == "random":
            return self.random.randrange(len(self.engines))
        if self.policy == "least loaded":
            least = min(self.loads.values())
            return self.random.choice([r for r, load in self.loads.items() if load == least])
        return preference(self.table, request.chain, self.loads, self.busy_tokens)[0]

    def run(self) -> dict[str, float]:
        routing = 0.0
        routed = 0
        while self.events:
            now, _, kind, what = heapq.heappop(self.events)
            if kind == "turn":
                assert isinstance(what, Request)
                start = time.perf_counter()
                chosen = self._choose(what)
                if self.policy == "prefix":
                    self.table.sent(chosen, what.chain)
                routing += time.perf_counter() - start
                routed += 1
                self.loads[chosen] += 1
                engine = self.engines[chosen]
                engine.waiting.append(what)
                if not engine.busy:
                    self._begin_step(chosen, now)
            else:
                assert isinstance(what, tuple)
                self._end_step(*what, now)
        return self._summary(routing / max(1, routed))

    def _begin_step(self, number: int, now: float) -> None:
        engine = self.engines[number]
        engine.busy = engine.load > 0
        if engine.busy:
            seconds, writing = engine.step()
            self._at(now + seconds, "step", (number, writing))

    def _end_step(self, number: int, writing: list[Request], now: float) -> None:
        engine = self.engines[number]
        for request in writing:
            request.first = request.first or now
            request.to_write -= 1
            if request.to_write == 0:
                engine.running.remove(request)
                self.loads[number] -= 1
                self.finished.append(request)
                self.ends.append(now)
                if request.turn + 1 < self.traffic.turns and now < self.seconds:
                    later = now + self.random.expovariate(1 / self.traffic.pause)
                    turn = self._turn(request.conversation, request.turn + 1, later)
                    self._at(later, "turn", turn)
        self._begin_step(number, now)

    def _summary(self, routing_seconds: float) -> dict[str, float]:
        # The first fifth warms the caches up.
        pairs = zip(self.finished, self.ends, strict=True)
        counted = [(r, end) for r, end in pairs if self.seconds / 5 < r.arrived < self.seconds]
        firsts = sorted(r.first - r.arrived for r, _ in counted)
        totals = sorted(end - r.arrived for r, end in counted)
        in_time = [r for r, end in counted if end < self.seconds]
        return {
            "requests": len(counted),
            "output_tokens_per_s": len(in_time) * self.traffic.answer_tokens / self.seconds / 0.8,
            "first_token_p50_s": statistics.median(firsts),
            "first_token_p99_s": firsts[int(0.99 * len(firsts))],
            "total_p50_s": statistics.median(totals),
            "total_p99_s": totals[int(0.99 * len(totals))],
            "prefix_hits": sum(r.found for r, _ in counted)
            / sum(r.prompt_tokens for r, _ in counted),
            "routing_us": routing_seconds * 1e6,
        }


def capacity(service: Service, traffic: Traffic) -> float:
    """Requests per second of one engine with full batches that never finds a prefix."""
    mean_turn = (traffic.turns - 1) / 2
    own = traffic.user_tokens + mean_turn * (traffic.user_tokens + traffic.answer_tokens)
    prompt = (traffic.system_tokens + own) * service.prompt_token
    per_token = service.step / service.max_requests + service.decode_token
    return 1 / (prompt + traffic.answer_tokens * per_token)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 10, 100, 1000])
    parser.add_argument("--load", type=float, nargs="+", default=[0.7, 1.2])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--busy-tokens", type=int, default=256)
    parser.add_argument("--policy", nargs="+", default=["random", "least loaded", "prefix"])
    for name in ("step", "prompt_token", "decode_token"):
        default = getattr(Service, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=default)
    parser.add_argument("--json", help="write the rows here as well")
    options = parser.parse_args()
    service = Service(options.step, options.prompt_token, options.decode_token)
    traffic = Traffic()
    rows = []
    print(
        "replicas  load  policy        tokens/s  first token p50, p99  all p50, p99    hits  route"
    )
    for replicas, load, policy in itertools.product(options.replicas, options.load, options.policy):
        rate = load * replicas * capacity(service, traffic)
        row = Simulation(
            replicas, policy, rate, options.seconds, service, traffic, options.busy_tokens
        ).run()
        rows.append({"replicas": replicas, "load": load, "policy": policy, **row})
        print(
            f"{replicas:8}  {load:4.1f}  {policy:<12}{row['output_tokens_per_s']:10,.0f}"
            f"{row['first_token_p50_s']:11.2f} s{row['first_token_p99_s']:7.2f} s"
            f"{row['total_p50_s']:8.1f} s{row['total_p99_s']:6.1f} s"
            f"{row['prefix_hits']:7.0%}{row['routing_us']:6.0f} us",
            flush=True,
        )
    if options.json:
        Path(options.json).write_text(json.dumps({**vars(options), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
