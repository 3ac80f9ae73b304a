"""Pictures, videos and sounds are encoded between steps, so that other requests go on meanwhile.

The host encodes a medium within the step that needs it, and every request of the server waits for
that step: on a small CPU tens of seconds for a photo.  Here a request stays in the queue until its
media are encoded.  That runs on a stack of its own (a greenlet), which is left between two modules
of the tower and taken up again between two steps: one thread, the same calls in the same order, so
nothing computes at the same time and every number is the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

# While no other request can go on, the engine looks that often for new ones.
IDLE_SECONDS = 0.1
# Of the time: less, and a text stands still beside a picture; more, and many requests with pictures
# should take longer in all (not measured): steps of few read the weights as often as those of many.
OTHERS_SHARE = 0.25


class OneMedium:
    """In the place of what the host has scheduled: one medium of a request that it has not."""

    def __init__(self, request_id: str, feature: Any, number: int) -> None:
        self.scheduled_encoder_inputs = {request_id: [number]}
        self.free_encoder_mm_hashes: list[str] = []
        self.encoded: dict[str, torch.Tensor] = {}
        self._request_id, self._feature = request_id, feature

    @property
    def ec_manager_metadata(self) -> OneMedium:
        """What the host hands on to where it keeps the result."""
        return self

    def batch(self) -> tuple[list[str], list[tuple[str, Any]], list[tuple[str, Any]]]:
        """Identifiers, media and places, as the host makes them of what it has scheduled."""
        one = self._feature
        return (
            [one.identifier],
            [(one.modality, one.data)],
            [(self._request_id, one.mm_position)],
        )


class MediaAhead:
    """The media of one request, encoded one after the other.

    ``encode(request, number)`` encodes one of the host's ``mm_features`` and returns the embedding
    of its tokens [tokens, hidden]; ``known(identifier)`` says whether the runner has it already;
    ``capacity``: tokens of the runner's own cache, of which media that do not fit are left to it.
    ``stacks``: the package greenlet.
    """

    def __init__(
        self,
        stacks: ModuleType,
        encode: Callable[[Any, int], torch.Tensor],
        known: Callable[[str], bool],
        capacity: int,
    ) -> None:
        self._stacks = stacks
        self._encode = encode
        self._known = known
        self._capacity = capacity
        self._request: Any = None
        self._encoded: dict[str, torch.Tensor] = {}
        self._work: Any = None  # on a stack of its own
        self._number = self._thread = 0
        self._pause_at = self._resume_at = 0.0

    def pending(self, request: Any, num_computed_tokens: int) -> bool:
        """Whether a request that waits has to go on waiting for its media; begins with them if no
        other's are being encoded."""
        missing = self._missing(request, num_computed_tokens)
        if not missing:
            return False
        if self._request is not None and self._is_done(self._request):
            self.drop()
        if self._request is None:
            self._request = request
        if self._request is request and self._work is None:
            self._begin(missing[0])
        return True

    def take(self, identifier: str) -> torch.Tensor | None:
        """A medium that has been encoded, which is given up."""
        return self._encoded.pop(identifier, None)

    def drop(self) -> None:
        """Give up what is being encoded, and what nobody has taken."""
        if self._work is not None and threading.get_ident() == self._thread:
            self._work.throw()
        self._request = self._work = None
        self._encoded.clear()

    def advance(self, busy: bool) -> None:
        """Encode for a while.  busy: others are in this step, and get their share of the time."""
        if self._work is None:
            return
        if self._request.is_finished():
            return self.drop()
        if threading.get_ident() != self._thread:  # a stack belongs to its thread
            self._begin(self._number)
        begin = time.perf_counter()
        if busy and begin < self._resume_at:
            return
        self._pause_at = begin + (0.0 if busy else IDLE_SECONDS)
        hook = register_module_forward_pre_hook(self._between_modules)
        try:
            with torch.inference_mode():
                self._work.parent = self._stacks.getcurrent()
                self._work.switch()
        finally:
            hook.remove()
        end = time.perf_counter()
        self._resume_at = end + (end - begin) * OTHERS_SHARE / (1 - OTHERS_SHARE)
        if self._work.dead:
            self._work = None

    def _missing(self, request: Any, num_computed_tokens: int) -> list[int]:
        """Which of its media are to be encoded, as far as the runner's cache holds them."""
        missing, tokens = [], 0
        for number, feature in enumerate(request.mm_features):
            place = feature.mm_position
            tokens += place.get_num_embeds()
            if tokens > self._capacity:
                break
            if place.offset + place.length <= num_computed_tokens or feature.data is None:
                continue
            if feature.identifier not in self._encoded and not self._known(feature.identifier):
                missing.append(number)
        return missing

    def _is_done(self, request: Any) -> bool:
        """Whether it needs no more of what was encoded for it."""
        computed: bool = request.num_computed_tokens >= request.num_prompt_tokens
        return computed or request.is_finished()

    def _begin(self, number: int) -> None:
        request = self._request

        def work() -> None:
            encoded = self._encode(request, number)
            self._encoded[request.mm_features[number].identifier] = encoded

        self._number = number
        self._thread = threading.get_ident()
        self._work = self._stacks.greenlet(work)

    def _between_modules(self, *_: Any) -> None:
        if time.perf_counter() >= self._pause_at and self._stacks.getcurrent() is self._work:
            self._work.parent.switch()
