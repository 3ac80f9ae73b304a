"""Pages of attention in models that also keep states are as large as those.

What: this backend's platform asks the host's ``_align_hybrid_block_size``.
Why: it is a part of what the host would do with the size of pages, the rest of which is not wanted.
Since: 0.32
Until: never: the host allocates both kinds of pages from one pool.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import rely_on

rely_on(
    "vllm.platforms.interface",
    "Platform._find_non_ssm_backends(cls, vllm_config)",
    "Platform._align_hybrid_block_size(cls, vllm_config, backend_cls)",
)


def align(platform: Any, vllm_config: Any) -> None:
    """Once the model's layers are there."""
    backends = platform._find_non_ssm_backends(vllm_config)
    if backends:
        platform._align_hybrid_block_size(vllm_config, backends[0])
