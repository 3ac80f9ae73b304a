"""A server under mixed load for as long as one likes: answers stay what they were, nothing grows.

    python -m tests.e2e.soak [--model FOLDER] [--minutes N] [--clients N] [ARGUMENT ...]

Each kind of request is drawn again and again, beside others that differ from round to round.  The
first answer to a request is what all later ones must be, bit for bit: batches, the prefix cache and
preemption change no number.  ARGUMENTs go to ``vllm serve``.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpu_backend.demo_model import default_dir, make_demo_model
from tests.e2e.server import Server

TEXT = (Path(__file__).parent / "alice.txt").read_text()
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
}
WITH_DRAFTS = "not yet supported with speculative decoding"  # some settings, says the host
GREEDY = {"temperature": 0, "max_tokens": 24}
SEEDED = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 16}


def _prompt(draw: random.Random) -> str:
    begin = draw.randrange(0, len(TEXT) // 2, 500)
    return TEXT[begin : begin + draw.choice([20, 90, 400, 1500, len(TEXT)])]


@dataclass(frozen=True)
class Ask:
    """One request; ``read`` chunks of a stream are awaited before the client goes away."""

    body: dict[str, Any]
    path: str = "/v1/completions"
    status: int = 200
    read: int | None = None

    @property
    def key(self) -> str:
        return json.dumps([self.path, self.body], sort_keys=True)


def asks(draw: random.Random) -> Iterator[Ask]:
    """One request of each kind."""
    prompt = _prompt(draw)
    seed = draw.randrange(4)
    chat = {"messages": [{"role": "user", "content": prompt[:400]}]}
    yield Ask({"prompt": prompt, **GREEDY, "logprobs": 3})
    yield Ask({"prompt": [prompt[:90], prompt[:400]], **GREEDY})
    yield Ask({"prompt": prompt[:90], **SEEDED, "seed": seed, "n": 3})
    yield Ask({"prompt": prompt[:400], **SEEDED, "seed": seed, "min_p": 0.1, "top_k": 20})
    yield Ask({"prompt": prompt[:400], **GREEDY, "repetition_penalty": 1.2, "stop": [".", "\n"]})
    yield Ask({"prompt": prompt[:1500], **GREEDY, "prompt_logprobs": 1})
    yield Ask({"prompt": prompt[:90], **GREEDY, "logit_bias": {"198": -100}, "min_tokens": 9})
    yield Ask({**chat, **GREEDY, "logprobs": True}, "/v1/chat/completions")
    yield Ask({**chat, **GREEDY, "structured_outputs": {"json": SCHEMA}}, "/v1/chat/completions")
    for abandoned in (0, 1, 5):
        body = {"prompt": prompt, "max_tokens": 400, "ignore_eos": True, "stream": True}
        yield Ask(body, read=abandoned)
    yield Ask({"prompt": prompt, "max_tokens": -1}, status=400)
    yield Ask({"prompt": TEXT * 20, "max_tokens": 9}, status=400)
    yield Ask({**chat, "structured_outputs": {"regex": "("}}, "/v1/chat/completions", status=400)


@dataclass
class Held:
    """What a server's processes hold; bytes of memory that is not shared with files."""

    processes: int
    threads: int
    files: int
    memory: int

    @classmethod
    def of(cls, server: Server) -> Held:
        pids = server.group()
        threads = files = memory = 0
        for pid in pids:
            place = Path(f"/proc/{pid}")
            threads += len(list((place / "task").iterdir()))
            files += len(list((place / "fd").iterdir()))
            for line in (place / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss_Anon:"):
                    memory += int(line.split()[1]) << 10
        return cls(len(pids), threads, files, memory)


@dataclass
class Soak:
    """Sends requests to ``server`` and keeps what came back."""

    server: Server
    first: dict[str, Any] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def sent(self) -> int:
        return self.kinds.total()

    def ask(self, ask: Ask) -> None:
        """Send one request; what comes back, or does not, is counted."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=300)
        try:
            kind, wrong = self._sent(ask, connection)
        except (OSError, http.client.HTTPException) as error:
            kind, wrong = "wrong", repr(error)
        finally:
            connection.close()
        with self._lock:
            self.kinds[kind] += 1
            if wrong:
                self.wrong.append(f"{ask.key[:200]}: {wrong}")

    def _sent(self, ask: Ask, connection: http.client.HTTPConnection) -> tuple[str, str]:
        """Its kind, and what is wrong with the answer."""
        body = json.dumps({"model": self.server.model, **ask.body})
        connection.request("POST", ask.path, body, {"content-type": "application/json"})
        if ask.read == 0:
            return "gone before the answer", ""
        reply = connection.getresponse()
        if ask.read is not None:
            for _ in range(2 * ask.read):  # each chunk is followed by an empty line
                reply.readline()
            return "gone within the answer", ""
        text = reply.read().decode()
        if reply.status == 400 and (ask.status == 400 or WITH_DRAFTS in text):
            return "refused", ""
        if reply.status != ask.status:
            return "wrong", f"{reply.status}, {text[:500]}"
        answer = json.loads(text)["choices"]
        with self._lock:
            first = self.first.setdefault(ask.key, answer)
        return ("answered", "") if first == answer else ("wrong", f"{first!r}, then {answer!r}")

    def run(self, seconds: float, clients: int, seed: int) -> None:
        """``clients`` at once until the time is over; each ends the round that it has begun."""
        end = time.monotonic() + seconds

        def client(number: int) -> None:
            draw = random.Random(f"{seed} {number}")
            while time.monotonic() < end and not self.wrong:
                round_ = list(asks(draw))
                draw.shuffle(round_)
                for each in round_:
                    self.ask(each)

        threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        deadline = time.monotonic() + 60
        while self.server.metric("vllm:num_requests_running") and time.monotonic() < deadline:
            time.sleep(0.1)


@contextmanager
def served(model: str, *arguments: str) -> Iterator[Server]:
    """A server whose KV cache may be set from outside."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(model, Path(folder) / "log", *arguments)
        server.environ["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")
        with server:
            yield server


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="default: the demo model")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--parts", type=int, default=10, help="lines that are printed")
    options, arguments = parser.parse_known_args()
    with served(str(options.model or make_demo_model(default_dir())), *arguments) as server:
        soak = Soak(server)
        for part in range(options.parts):
            soak.run(60 * options.minutes / options.parts, options.clients, part)
            held = Held.of(server)
            print(
                f"{soak.sent} requests: {held.memory >> 20} MiB, {held.threads} threads, "
                f"{held.files} files, {held.processes} processes; {dict(soak.kinds)}, "
                f"{server.metric('vllm:num_preemptions_total'):.0f} preemptions",
                flush=True,
            )
            if soak.wrong:
                print(os.linesep.join(soak.wrong[:3]))
                raise SystemExit(1)


if __name__ == "__main__":
    main()
