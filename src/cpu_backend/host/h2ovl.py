"""H2OVL's images beside others are not taken for the same images alone.

What: an image of several in a prompt has another hash.
Why: the host cuts an image alone into more tiles, but keeps what it computed of one (its encoder's
    output, and the prompt's keys and values) by the image's hash: in the other kind of prompt the
    engine ends, or answers from the wrong tiles.
Since: 0.32
Until: the hash says how the image was cut.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch


@patch(
    "vllm.model_executor.models.h2ovl",
    "H2OVLMultiModalProcessor._cached_apply_hf_processor(self, inputs, timing_ctx)",
)
def tell_apart(original: Any) -> Any:
    """By the hashes."""

    def processed(self: Any, inputs: Any, timing_ctx: Any) -> Any:
        result = original(self, inputs, timing_ctx)
        if inputs.mm_data_items.get_count("image", strict=False) > 1:
            hashes = {
                kind: [f"{one}-of-several" for one in found]
                for kind, found in result.hashes.items()
            }
            result = result._replace(hashes=hashes)
        return result

    return processed
