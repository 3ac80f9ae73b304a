"""One engine per NUMA node of a Ray cluster, behind one OpenAI-compatible endpoint.

``serve run cpu_backend.ray_serve:build model=MODEL`` starts it; ``docs/ray_serve.md`` has the rest.
The way of a request: Ray's HTTP proxy → :mod:`gateway` (limits, retries, streams) →
:mod:`router` (which replica) → :mod:`replica` (the host's own OpenAI app on an engine bound to its
node).  :mod:`prefix` and :mod:`places` are plain Python and know nothing of Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def build(args: dict[str, Any]) -> Application:
    """The Serve application; ``args`` are the fields of :class:`settings.Settings`."""
    from cpu_backend.ray_serve.application import build_application
    from cpu_backend.ray_serve.settings import Settings

    return build_application(Settings(**args))
