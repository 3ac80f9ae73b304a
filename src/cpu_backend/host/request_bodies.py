"""Odd bodies of requests are answered with status 400.

What: ``validate_json_request`` looks at what serving/requests.py calls odd.
Why: the host answers them with status 500.
Since: 0.32
Until: it answers 400.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch
from cpu_backend.serving.requests import odd


@patch("vllm.entrypoints.serve.utils.api_utils", "validate_json_request(raw_request)")
def validate(original: Any) -> Any:
    """Whatever its endpoints ask of every body in JSON, and this."""
    from vllm.exceptions import VLLMValidationError

    async def validate_json_request(raw_request: Any) -> None:
        await original(raw_request)
        if said := odd(await raw_request.body(), await raw_request.json()):
            raise VLLMValidationError(said)

    return validate_json_request
