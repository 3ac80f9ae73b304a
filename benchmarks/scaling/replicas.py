"""Many engines behind the replica router, event by event.

The decisions are those of production: :mod:`cpu_backend.ray_serve.prefix` with the loads that Serve
keeps for it, beside three common policies.  An engine does continuous batching: a step takes
``step + requests * decode_token + prompt tokens * prompt_token`` seconds.  Its prefix cache is a
least-recently-used set of chunks, and it is the engine's, not the router's guess of it.

Traffic is conversations that begin at random (Poisson).  Each starts with one of a few system
prompts, popular ones more often; every turn's prompt is the whole conversation so far, and the next
turn comes some seconds after the answer.  Messages are made of words, so chains come from the
production code as well.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from cpu_backend.ray_serve.prefix import CHUNK_TOKENS, PrefixTable, preference

POLICIES = ("random", "round robin", "least loaded", "prefix")


@dataclass(frozen=True)
class Service:
    """An engine: seconds of its work, and its sizes in tokens and requests."""

    step: float
    decode_token: float
    prompt_token: float
    cache_tokens: int = 65_536
    max_running: int = 32
    max_step_tokens: int = 2048


@dataclass(frozen=True)
class Traffic:
    """Conversations; lengths in tokens, pauses in seconds."""

    systems: int = 16
    system_tokens: int = 512
    turns: int = 4
    user_tokens: int = 64
    answer_tokens: int = 64
    pause: float = 5.0

    def prompt_tokens(self, turn: int) -> int:
        both = self.user_tokens + self.answer_tokens
        return self.system_tokens + self.user_tokens + turn * both


@dataclass(frozen=True)
class Limits:
    """The gateway's, by their names in cpu_backend.ray_serve.settings, whose defaults they have."""

    busy_tokens: int = 256
    max_ongoing: int = 64
    max_waiting: int = 64


@dataclass(eq=False)
class Request:
    """One turn of a conversation; times in seconds since the beginning."""

    conversation: int
    system: int
    turn: int
    chain: list[int]
    prompt_tokens: int
    arrived: float
    to_write: int
    to_compute: int = 0
    found: int = 0
    replica: int = -1
    first: float = 0.0
    ended: float = 0.0


@dataclass
class Engine:
    """Continuous batching: running requests write a token per step, prompts fill it up."""

    service: Service
    cache: PrefixTable = field(default_factory=PrefixTable)
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    is_busy: bool = False

    def __post_init__(self) -> None:
        self.cache.set_capacity(0, self.service.cache_tokens)

    def step(self) -> tuple[float, list[Request]]:
        """Seconds of the next step, and the requests that write a token at its end."""
        service = self.service
        while self.waiting and len(self.running) < service.max_running:
            request = self.waiting.popleft()
            held = self.cache.matched(0, request.chain) * CHUNK_TOKENS
            request.found = min(held, request.prompt_tokens - 1)
            request.to_compute = request.prompt_tokens - request.found
            self.cache.sent(0, request.chain)
            self.running.append(request)
        writing = [request for request in self.running if request.to_compute == 0]
        seconds = service.step + len(writing) * service.decode_token
        budget = service.max_step_tokens - len(writing)
        for request in self.running:
            part = min(budget, request.to_compute)
            if part > 0:
                budget -= part
                seconds += part * service.prompt_token
                request.to_compute -= part
                if request.to_compute == 0:
                    writing.append(request)
        return seconds, writing


@dataclass(frozen=True)
class Result:
    """Latencies and hits are of requests that came after the first fifth of the time."""

    arrived: int
    finished: int
    refused: int
    tokens_per_s: float
    first_p50: float
    first_p99: float
    hit_rate: float
    decisions_per_s: float


class Simulation:
    """``run()`` it once; the same arguments give the same requests, and but for

    ``decisions_per_s``, which is measured, the same result.
    """

    def __init__(
        self,
        policy: str,
        replicas: int,
        rate: float,
        seconds: float,
        service: Service,
        traffic: Traffic = Traffic(),
        limits: Limits = Limits(),
        seed: int = 1,
    ) -> None:
        if policy not in POLICIES:
            raise ValueError(f"'{policy}' is no policy: choose one of {', '.join(POLICIES)}")
        self.policy, self.seconds = policy, seconds
        self.traffic, self.limits = traffic, limits
        self.engines = [Engine(service) for _ in range(replicas)]
        self.loads = dict.fromkeys(range(replicas), 0)
        self.table = PrefixTable()
        self.table.keep_only(range(replicas))
        for replica in range(replicas):
            self.table.set_capacity(replica, service.cache_tokens)
        # What arrives does not depend on the policy's own draws.
        self.arrivals, self.draws = random.Random(seed), random.Random(seed + 1)
        self.turn_of = itertools.cycle(range(replicas))
        self.numbers = itertools.count()
        self.events: list[tuple[float, int, Request | tuple[int, list[Request]]]] = []
        self.queue: deque[Request] = deque()
        self.requests: list[Request] = []
        self.finished: list[Request] = []
        self.refused = 0
        self.decisions, self.deciding = 0, 0.0
        weights = [1 / (i + 1) for i in range(traffic.systems)]
        now = 0.0
        for conversation in itertools.count():
            now += self.arrivals.expovariate(rate / traffic.turns)
            if now > seconds:
                break
            [system] = self.arrivals.choices(range(traffic.systems), weights)
            self._at(now, self._turn(conversation, system, 0, now))

    def run(self) -> Result:
        """Until every request that came has been answered or refused."""
        while self.events:
            now, _, event = heapq.heappop(self.events)
            if isinstance(event, Request):
                self._arrive(event, now)
            else:
                self._end_step(*event, now)
        return self._result()

    # ---- traffic ---------------------------------------------------------------------------------

    def _at(self, when: float, event: Request | tuple[int, list[Request]]) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), event))

    def _turn(self, conversation: int, system: int, turn: int, now: float) -> Request:
        traffic = self.traffic
        tokens = traffic.prompt_tokens(turn)
        shared = traffic.system_tokens // CHUNK_TOKENS
        own = tokens // CHUNK_TOKENS - shared
        # Chunks by name: a conversation's do not change from turn to turn, they only get more.
        chain = [-1 - system * shared - i for i in range(shared)]
        chain += [conversation << 16 | i for i in range(own)]
        return Request(
            conversation, system, turn, chain, tokens, now, to_write=traffic.answer_tokens
        )

    # ---- the gateway -----------------------------------------------------------------------------

    def _arrive(self, request: Request, now: float) -> None:
        self.requests.append(request)
        if not self._place(request, now):
            if len(self.queue) < self.limits.max_waiting:
                self.queue.append(request)
            else:
                self.refused += 1

    def _place(self, request: Request, now: float) -> bool:
        """To the first replica in the order of preference that has a place."""
        start = time.thread_time()
        order = self._order(request)
        self.decisions += 1
        self.deciding += time.thread_time() - start
        for replica in order:
            if self.loads[replica] < self.limits.max_ongoing:
                break
        else:
            return False
        request.replica = replica
        self.loads[replica] += 1
        if self.policy == "prefix":
            start = time.thread_time()
            self.table.sent(replica, request.chain)
            self.deciding += time.thread_time() - start
        self.engines[replica].waiting.append(request)
        if not self.engines[replica].is_busy:
            self._begin_step(replica, now)
        return True

    def _order(self, request: Request) -> Sequence[int]:
        if self.policy == "prefix":
            return preference(self.table, request.chain, self.loads, self.limits.busy_tokens)
        replicas = len(self.engines)
        if self.policy == "least loaded":
            # Among equals in turn: the first ones would else get all while there is little to do.
            first = next(self.turn_of)
            rotated = [*range(first, replicas), *range(first)]
            return [min(rotated, key=self.loads.__getitem__)]  # if it has no place, none has
        first = (
            next(self.turn_of) if self.policy == "round robin" else self.draws.randrange(replicas)
        )
        return [*range(first, replicas), *range(first)]

    # ---- the engines -----------------------------------------------------------------------------

    def _begin_step(self, replica: int, now: float) -> None:
        engine = self.engines[replica]
        engine.is_busy = bool(engine.waiting or engine.running)
        if engine.is_busy:
            seconds, writing = engine.step()
            self._at(now + seconds, (replica, writing))

    def _end_step(self, replica: int, writing: list[Request], now: float) -> None:
        for request in writing:
            request.first = request.first or now
            request.to_write -= 1
            if request.to_write == 0:
                self._finish(request, now)
        self._begin_step(replica, now)
        while self.queue and self._place(self.queue[0], now):
            self.queue.popleft()

    def _finish(self, request: Request, now: float) -> None:
        request.ended = now
        self.engines[request.replica].running.remove(request)
        self.loads[request.replica] -= 1
        self.finished.append(request)
        later = now + self._pause(request)
        if request.turn + 1 < self.traffic.turns and later < self.seconds:
            turn = self._turn(request.conversation, request.system, request.turn + 1, later)
            self._at(later, turn)

    def _pause(self, request: Request) -> float:
        """Seconds until the next turn: of the conversation alone, whatever the others do."""
        own = random.Random(request.conversation * 64 + request.turn)
        return own.expovariate(1 / self.traffic.pause)

    def _result(self) -> Result:
        begin = self.seconds / 5
        counted = [request for request in self.finished if request.arrived > begin]
        firsts = sorted(request.first - request.arrived for request in counted)
        in_time = sum(1 for request in self.finished if begin < request.ended < self.seconds)
        prompt_tokens = sum(request.prompt_tokens for request in counted)
        return Result(
            arrived=len(self.requests),
            finished=len(self.finished),
            refused=self.refused,
            tokens_per_s=in_time * self.traffic.answer_tokens / (self.seconds - begin),
            first_p50=firsts[len(firsts) // 2] if firsts else 0.0,
            first_p99=firsts[len(firsts) * 99 // 100] if firsts else 0.0,
            hit_rate=sum(r.found for r in counted) / prompt_tokens if counted else 0.0,
            decisions_per_s=self.decisions / self.deciding if self.deciding else 0.0,
        )


def capacity(service: Service, traffic: Traffic, hit_rate: float = 0.0) -> float:
    """Requests per second of one engine with full batches that finds this part of its prompts."""
    prompts = sum(map(traffic.prompt_tokens, range(traffic.turns))) / traffic.turns
    computing = prompts * (1 - hit_rate) * service.prompt_token
    writing = service.step / service.max_running + service.decode_token
    return 1 / (computing + traffic.answer_tokens * writing)
