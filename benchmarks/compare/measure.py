"""The rounds: every peer once per round, one process at a time, and what each of them gave.

A record per process is appended to ``runs.jsonl`` as soon as the process has ended, so a stopped
measurement goes on where it was: what a round already has is not measured again. The machine is
probed before and after each process.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.compare.environments import SetupError
from benchmarks.compare.machine import Machine
from benchmarks.compare.models import ModelFiles, Shape
from benchmarks.compare.peers import OURS, PEERS, RUNNERS, Peer, Situation
from benchmarks.compare.process import Runner, RunnerEndedError, RunnerError, clean_environ
from benchmarks.compare.work import Work

# Only this project takes its source folder from the shell, where it is not installed.
KEPT = {OURS: ("PYTHONPATH",)}
FIRST_TOKENS = 32
GREEDY_TOKENS = 32


@dataclass(frozen=True)
class Turn:
    """One process of one round: a peer in a dtype, as an engine or as a server."""

    round: int
    peer: Peer
    dtype: str
    is_server: bool
    works: tuple[Work, ...]


@dataclass
class Store:
    """The records of one output folder."""

    path: Path
    records: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path) -> Store:
        lines = path.read_text().splitlines() if path.is_file() else []
        return cls(path, [json.loads(line) for line in lines])

    def append(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        with self.path.open("a") as out:
            out.write(json.dumps(record) + "\n")

    def done(
        self, model: str, *, quiet_cores: float, retry_failed: bool
    ) -> set[tuple[object, ...]]:
        """(round, peer, dtype, work) of every work that needs no further try: undisturbed ones,

        and failed ones unless they are to be retried.
        """
        found: set[tuple[object, ...]] = set()
        for record in self.records:
            if record["model"] == model:
                works = record["works"].items()
                quiet = [text for text, work in works if work["other_cores"] <= quiet_cores]
                failed = () if retry_failed else record["failures"]
                key = (record["round"], record["peer"], record["dtype"])
                found |= {(*key, text) for text in (*quiet, *failed)}
        return found


def turns(
    rounds: int,
    usable: list[tuple[Peer, str]],
    works: list[Work],
    done: set[tuple[object, ...]],
) -> Iterator[Turn]:
    """What is still to be measured of (peer, dtype), in that order, so that peers alternate."""
    for number in range(1, rounds + 1):
        for peer, dtype in usable:
            for is_server in (False, True):
                wanted = tuple(
                    work
                    for work in works
                    if work.is_served == is_server
                    and (number, peer.name, dtype, str(work)) not in done
                )
                if wanted and (peer.server or not is_server):
                    yield Turn(number, peer, dtype, is_server, wanted)


def probe_machine(probe: Runner) -> dict[str, float]:
    reply = probe.ask({})
    return {name: reply[name] for name in ("bytes_per_s", "flop_per_s")}


@dataclass
class Measurement:
    """Takes turns until they are done or the time is up."""

    machine: Machine
    files: ModelFiles
    store: Store
    python: Callable[[str], Path]
    commit: str
    logs: Path
    timeout_s: float
    # What other programs may use of the machine before a work is called disturbed.
    quiet_cores: float
    say: Callable[[str], None]
    # time.monotonic() after which nothing new begins.
    deadline: float = float("inf")

    def run(self, all_turns: Iterator[Turn]) -> bool:
        """True when all turns were taken, False when the time was up before."""
        threads = {"threads": self.machine.threads}
        with self._runner(self.python(OURS), "machine_limits.py", {}, PEERS[OURS]) as probe:
            probe.ask(threads)
            limits = probe_machine(probe)
            for turn in all_turns:
                if self._is_over():
                    return False
                record = self._new_record(turn)
                try:
                    self._take(turn, record)
                except KeyboardInterrupt:
                    # What the process has given until now is not lost.
                    if record["works"]:
                        self.store.append({**record, "limits": [limits, limits]})
                    raise
                before, limits = limits, probe_machine(probe)
                self.store.append({**record, "limits": [before, limits]})
                if len(record["works"]) + len(record["failures"]) < len(turn.works):
                    return False
        return True

    def _is_over(self) -> bool:
        return time.monotonic() >= self.deadline

    def _new_record(self, turn: Turn) -> dict[str, Any]:
        return {
            "model": self.files.model.name,
            "shape": vars(Shape.of_checkpoint(self.files.checkpoint())),
            "round": turn.round,
            "peer": turn.peer.name,
            "dtype": turn.dtype,
            "is_server": turn.is_server,
            "commit": self.commit,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "works": {},
            "failures": {},
        }

    def _take(self, turn: Turn, record: dict[str, Any]) -> None:
        kind = "server" if turn.is_server else "engine"
        self.say(f"round {turn.round}: {turn.peer.name} {turn.dtype} {kind}")
        try:
            self._measure(turn, record)
        except (RunnerError, SetupError) as error:
            for work in turn.works:
                if str(work) not in record["works"]:
                    record["failures"].setdefault(str(work), str(error))
            self.say(f"  {error}")

    def _measure(self, turn: Turn, record: dict[str, Any]) -> None:
        peer, model = turn.peer, self.files.model
        situation = Situation(self.machine, self.python(peer.environment), self.files, turn.dtype)
        environ = peer.environ(situation)
        if turn.is_server:
            settings = peer.server_settings(situation, environ, self.python(OURS))
            # The server gets them from its runner, and the client, which is ours, does not.
            runner_environ: dict[str, str] = {}
        else:
            settings = peer.settings(situation, record["shape"]["vocab_size"])
            runner_environ = environ
        record |= {"settings": settings, "environ": environ}
        script = "server.py" if turn.is_server else peer.runner
        with self._runner(situation.python, script, runner_environ, peer) as runner:
            started = runner.ask(settings)
            first = runner.ask({"kind": "first", "sizes": [FIRST_TOKENS], "repeats": 1})
            record["startup"] = {
                **started,
                "first_token_s": time.perf_counter() - runner.started,
                "first_request_s": first["values"][0],
            }
            greedy = {"tokens": model.prompt_tokens, "prompt": model.prompt}
            record["greedy"] = runner.ask({"kind": "greedy", **greedy, "outputs": GREEDY_TOKENS})
            for work in turn.works:
                if self._is_over():
                    break
                self._work(runner, work, record)
                record["memory_bytes"] = runner.memory_bytes()

    def _work(self, runner: Runner, work: Work, record: dict[str, Any]) -> None:
        request = {"kind": work.kind, "sizes": work.sizes, "repeats": work.repeats}
        try:
            reply = runner.ask(request)
        except RunnerEndedError as error:
            raise RunnerEndedError(f"{work}: {error}") from None
        except RunnerError as error:
            record["failures"][str(work)] = str(error)
            self.say(f"  {work}: {error}")
        else:
            record["works"][str(work)] = reply
            values = ", ".join(f"{value:.4g}" for value in reply["values"])
            others = reply["other_cores"]
            noise = f" (others kept {others:.2f} cores busy)" if others > self.quiet_cores else ""
            self.say(f"  {work}: {values}{noise}")

    def _runner(self, python: Path, script: str, environ: dict[str, str], peer: Peer) -> Runner:
        cleaned = clean_environ(environ, KEPT.get(peer.environment, ()))
        log = self.logs / f"{peer.name}.log"
        return Runner(python, RUNNERS / script, cleaned, log, self.timeout_s)
