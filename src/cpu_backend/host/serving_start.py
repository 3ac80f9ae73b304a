"""What keeps the HTTP server from its first request, in one sentence.

What: errors of ``build_and_serve`` become sentences: middleware, adapters, certificates that are
    not there.
Why: the host shows a traceback.
Since: 0.32
Until: never: manners, not a defect.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch
from cpu_backend.serving import sentences


@patch("vllm.entrypoints.launchers.api_server.entry", "build_and_serve(engine_client, ...)")
def serve(original: Any) -> Any:
    """It returns as soon as the server stands."""

    async def build_and_serve(*args: Any, **kwargs: Any) -> Any:
        with sentences.told():
            return await original(*args, **kwargs)

    return build_and_serve
