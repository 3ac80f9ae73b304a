"""Top-k and top-p on this project's op, wherever the host's own sampler filters.

What: ``apply_top_k_top_p`` is ops.keep_top, also where the host verifies drafts.
Why: the host's path for CPUs sorts every row of logits, and fails where there is none: in steps
    without a draft.
Since: 0.32
Until: a hook of the platform.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch


@patch("vllm.v1.sample.rejection_sampler", "apply_top_k_top_p", when=When.COMPUTING)
@patch(
    "vllm.v1.sample.ops.topk_topp_sampler",
    "apply_top_k_top_p(logits, k, p, ...)",
    when=When.COMPUTING,
)
def without_sort(original: Any) -> Any:
    """0.33 adds a hint about rows, which this does not need."""
    del original
    from cpu_backend import ops

    def apply_top_k_top_p(logits: Any, k: Any, p: Any, *hints: Any, **more: Any) -> Any:
        del hints, more
        return ops.keep_top(logits, k, p)

    return apply_top_k_top_p
