"""Requests that the OpenAI client does not know."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from tests.e2e.server import Server

SECONDS = 300  # generous: a wedged server must fail the test


def post(server: Server, path: str, body: Any = None, status: tuple[int, ...] = (200,)) -> Any:
    """The answer to a POST, from JSON, an expected error as well; None where it is empty."""
    request = urllib.request.Request(
        server.url + path,
        data=b"" if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as reply:
            assert reply.status in status
            text = reply.read()
    except urllib.error.HTTPError as error:
        text = error.read()
        if error.code not in status:
            raise AssertionError(text[:500]) from error
    return json.loads(text) if text else None
