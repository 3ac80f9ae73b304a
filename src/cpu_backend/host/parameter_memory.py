"""The checkpoint's parameters leave the process when packed weights have replaced them.

What: ``initialize_model`` allocates them where freeing gives memory back at once.
Why: freed parameters would stay in the process's heap.
Since: 0.32
Until: a hook of the platform.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch


@patch("vllm.model_executor.model_loader.base_loader", "initialize_model", when=When.COMPUTING)
def map_parameters(original: Any) -> Any:
    """See runtime/pages.py."""
    from cpu_backend.runtime.pages import freed_at_once

    return freed_at_once()(original)
