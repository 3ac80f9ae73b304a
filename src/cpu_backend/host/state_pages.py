"""Pages of attention in models that also keep states are as large as those.

What: this backend's platform asks the host's ``_align_hybrid_block_size``.
Why: it is a part of what the host would do with the size of pages, the rest of which is not wanted.
Since: 0.32
Until: never: the host allocates both kinds of pages from one pool.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host import source
from cpu_backend.host.seam import Hosts, rely_on

MODULE = "vllm.platforms.interface"
OF_ALL_LAYERS = Hosts(since=(0, 31))
rely_on(MODULE, "Platform._align_hybrid_block_size(cls, vllm_config, backend_cls)")
rely_on(MODULE, "Platform._find_non_ssm_backends(cls, vllm_config)", hosts=OF_ALL_LAYERS)
rely_on(MODULE, "Platform._find_non_ssm_backend(cls, vllm_config)", hosts=Hosts(until=(0, 31)))


def align(platform: Any, vllm_config: Any) -> None:
    """Once the model's layers are there."""
    if source.host() in OF_ALL_LAYERS:
        backend = next(iter(platform._find_non_ssm_backends(vllm_config)), None)
    else:
        backend = platform._find_non_ssm_backend(vllm_config)
    if backend is not None:
        platform._align_hybrid_block_size(vllm_config, backend)
