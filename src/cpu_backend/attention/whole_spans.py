"""An image whose tokens see each other is computed in one step, not in chunks of a prompt.

The host promises as much with ``disable_chunked_mm_input``, but cuts an image nevertheless that
begins where a step does, or of which the prefix cache holds a part.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any


def keep_whole(module: Any) -> None:
    """Let the host's scheduler end no step within a span."""
    original = module.Scheduler._try_schedule_encoder_inputs

    @functools.wraps(original)
    def schedule(
        self: Any,
        request: Any,
        num_computed_tokens: int,
        num_new_tokens: int,
        *args: Any,
        **kw: Any,
    ) -> tuple[Any, ...]:
        inputs, tokens, *rest = original(
            self, request, num_computed_tokens, num_new_tokens, *args, **kw
        )
        if self.vllm_config.model_config.is_mm_prefix_lm:
            places = [feature.mm_position for feature in request.mm_features]
            spans = [(place.offset, place.offset + place.length) for place in places]
            tokens = whole(num_computed_tokens, tokens, spans)
        return inputs, tokens, *rest

    module.Scheduler._try_schedule_encoder_inputs = schedule


def whole(computed: int, tokens: int, spans: Iterable[tuple[int, int]]) -> int:
    """How many of the ``tokens`` after the ``computed`` ones to take, so that the step does not end
    within one of the ``spans`` [begin, end): none, if it begins there and the rest is too long."""
    end = computed + tokens
    for begin, behind in spans:
        if begin < end < behind:
            return max(begin - computed, 0)
    return tokens
