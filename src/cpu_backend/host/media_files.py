"""A request that names a file of media the server may not read, or has not, is answered with 400.

What: ``MediaConnector._load_file_url`` raises what the endpoints call the request's fault.
Why: the host answers 500, writes a traceback, and clients send such a request again.
Since: 0.32
Until: it answers 400.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch


@patch("vllm.multimodal.media.connector", "MediaConnector._load_file_url(self, url_spec, media_io)")
def refuse(original: Any) -> Any:
    """In the words of the host or of the system."""

    def _load_file_url(self: Any, url_spec: Any, media_io: Any) -> Any:
        try:
            return original(self, url_spec, media_io)
        except (RuntimeError, OSError) as error:
            raise ValueError(str(error)) from error

    return _load_file_url
