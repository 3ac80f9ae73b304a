"""An image whose tokens see each other is computed in one step, not in chunks of a prompt.

What: the scheduler ends no step within such an image, or within such a prompt.
Why: the host promises as much with ``disable_chunked_mm_input``, but cuts an image nevertheless
    that begins where a step does, or of which the prefix cache holds a part.
Since: 0.32
Until: it keeps them whole.
"""

from __future__ import annotations

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
        inputs, tokens, *rest = original(self, request, computed, new, *args, **kwargs)
        model = self.vllm_config.model_config
        if whole_prompts.has(model):
            tokens = whole(computed, tokens, [(0, request.num_prompt_tokens)])
        elif model.is_mm_prefix_lm:
            places = [feature.mm_position for feature in request.mm_features]
            spans = [(place.offset, place.offset + place.length) for place in places]
            tokens = whole(computed, tokens, spans)
        return inputs, tokens, *rest

    return schedule_inputs
