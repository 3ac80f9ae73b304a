"""An image whose tokens see each other is computed in one step, not in chunks of a prompt.

What: the scheduler ends no step within such an image or frame, or within such a prompt.
Why: the host promises as much with ``disable_chunked_mm_input``, but cuts an image nevertheless
    that begins where a step does, or of which the prefix cache holds a part.  And it keeps a video
    whole with the times between its frames: where a step has room for all frames and not for these,
    the request waits for ever, and all behind it.
Since: 0.32
Until: it keeps them whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from cpu_backend.attention import whole_prompts
from cpu_backend.attention.spans import whole
from cpu_backend.host.seam import patch


@patch(
    "vllm.v1.core.sched.scheduler",
    "Scheduler._try_schedule_encoder_inputs(self, request, num_computed_tokens, num_new_tokens, "
    "...)",
)
def schedule(original: Any) -> Any:
    """Fewer tokens where an image would be cut."""

    def schedule_inputs(
        self: Any, request: Any, computed: int, new: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        model = self.vllm_config.model_config
        is_whole = whole_prompts.has(model)
        see_themselves = model.is_mm_prefix_lm and not is_whole
        with _in_pieces(self.scheduler_config) if see_themselves else contextlib.nullcontext():
            inputs, tokens, *rest = original(self, request, computed, new, *args, **kwargs)
        if is_whole:
            tokens = whole(computed, tokens, [(0, request.num_prompt_tokens)])
        elif see_themselves:
            spans = [
                (begin, last + 1)
                for feature in request.mm_features
                for begin, last in feature.mm_position.extract_embeds_range()
            ]
            tokens = whole(computed, tokens, spans)
        return inputs, tokens, *rest

    return schedule_inputs


@contextlib.contextmanager
def _in_pieces(config: Any) -> Iterator[None]:
    """Have the host end a step anywhere, as ``whole`` sees to the spans."""
    kept, config.disable_chunked_mm_input = config.disable_chunked_mm_input, False
    try:
        yield
    finally:
        config.disable_chunked_mm_input = kept
