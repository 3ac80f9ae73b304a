"""What LLaVA-OneVision 2 reads videos with, which the host does itself."""

from typing import Any


class LlavaOnevision2VideoProcessor:
    def __init__(self, **_: Any) -> None:
        pass
