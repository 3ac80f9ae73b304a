"""Which replica holds the beginning of a prompt: pure functions, shared with the simulation.

An engine keeps the key-value pages of the prompts it has seen and drops the least recently used.
The router cannot see these pages, but it knows what it has sent where, so it keeps the same kind
of memory per replica: a prompt is a chain of chunks, each named by a hash of itself and all before
it, and each replica has a least-recently-used set of them, as large as its cache.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

Replica = TypeVar("Replica", bound=Hashable)

CHUNK_CHARACTERS = 256
CHUNK_TOKENS = 64
MAX_CHUNKS = 512  # longer prompts are told apart by their first 128 thousand characters
CHARACTERS_PER_TOKEN = 4  # of English in common vocabularies, to turn a cache's tokens into chunks


def chunks_of(body: Mapping[str, Any]) -> list[int]:
    """The chain of an OpenAI request: chat messages, a prompt or an input; [] for anything else.

    What comes first in the rendered prompt comes first here: tools before messages.
    """
    salt = str(body.get("model", ""))
    if isinstance(body.get("messages"), list):
        head = json.dumps(body["tools"]) if body.get("tools") else ""
        return _chain(salt, head + "".join(map(_message_text, body["messages"])), CHUNK_CHARACTERS)
    prompt = body.get("prompt", body.get("input"))
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]  # of several prompts the first one decides
    if isinstance(prompt, str):
        return _chain(salt, prompt, CHUNK_CHARACTERS)
    if isinstance(prompt, list):
        return _chain(salt, prompt, CHUNK_TOKENS)
    return []


def _message_text(message: Any) -> str:
    if not isinstance(message, dict):
        return str(message)
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(
            str(part.get("text", part)) if isinstance(part, dict) else str(part) for part in content
        )
    return f"\x00{message.get('role', '')}\x00{content or ''}"


def _chain(salt: str, sequence: str | list[int], chunk: int) -> list[int]:
    state = hashlib.blake2b(salt.encode(), digest_size=8)
    chain = []
    for start in range(0, min(len(sequence), MAX_CHUNKS * chunk) - chunk + 1, chunk):
        state.update(repr(sequence[start : start + chunk]).encode())
        chain.append(int.from_bytes(state.digest(), "big"))
    return chain


class PrefixTable:
    """What each replica's cache holds, as far as its requests tell."""

    def __init__(self, default_capacity: int = 4096) -> None:
        self._default = default_capacity
        self._held: dict[Hashable, OrderedDict[int, None]] = {}
        self._capacity: dict[Hashable, int] = {}

    def keep_only(self, replicas: Iterable[Hashable]) -> None:
        """Forget replicas that are no more, and know the new ones, whose caches are empty."""
        self._held = {replica: self._held.get(replica, OrderedDict()) for replica in replicas}

    def forget(self, replica: Hashable) -> None:
        """The replica died with its cache."""
        self._held.pop(replica, None)

    def set_capacity(self, replica: Hashable, tokens: int) -> None:
        """Tokens that the replica's cache can hold."""
        self._capacity[replica] = max(1, tokens * CHARACTERS_PER_TOKEN // CHUNK_CHARACTERS)

    def matched(self, replica: Hashable, chain: Sequence[int]) -> int:
        """Leading chunks of ``chain`` that the replica holds."""
        held = self._held.get(replica, ())
        return next((i for i, chunk in enumerate(chain) if chunk not in held), len(chain))

    def sent(self, replica: Hashable, chain: Sequence[int]) -> None:
        """A request with this prompt went to the replica."""
        held = self._held.setdefault(replica, OrderedDict())
        # Back to front: the beginning of a prompt is used last and dropped last, as in the engine.
        for chunk in reversed(chain):
            held[chunk] = None
            held.move_to_end(chunk)
        while len(held) > self._capacity.get(replica, self._default):
            held.popitem(last=False)

    def size(self, replica: Hashable) -> int:
        """Chunks that the replica holds."""
        return len(self._held.get(replica, ()))


def preference(
    table: PrefixTable, chain: Sequence[int], loads: Mapping[Replica, int], busy_tokens: int
) -> list[Replica]:
    """Replicas from best to worst: the longest cached prefix first, unless there is too much to do.

    ``loads``: requests that each replica works on.  One more of them counts like ``busy_tokens``
    prompt tokens that are not cached, so a replica is overloaded for this prompt as soon as its
    queue outweighs what its cache saves.  Among equals the emptiest cache comes first, so that
    prompts spread.
    """

    def cost(replica: Replica) -> tuple[int, int]:
        to_compute = (len(chain) - table.matched(replica, chain)) * CHUNK_TOKENS
        return to_compute + loads[replica] * busy_tokens, table.size(replica)

    return sorted(loads, key=cost)
