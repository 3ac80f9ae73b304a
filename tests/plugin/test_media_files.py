"""Files of media that a request names and the server may not read, or does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm.multimodal.media import ImageMediaIO, MediaConnector


def test_they_are_the_requests_fault(tmp_path: Path) -> None:
    url = (tmp_path / "absent.png").as_uri()
    with pytest.raises(ValueError, match="--allowed-local-media-path"):
        MediaConnector().load_from_url(url, ImageMediaIO())
    allowed = MediaConnector(allowed_local_media_path=str(tmp_path))
    with pytest.raises(ValueError, match="No such file"):
        allowed.load_from_url(url, ImageMediaIO())
