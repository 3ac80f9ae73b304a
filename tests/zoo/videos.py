"""Requests with videos in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.zoo.media import Case, Picture, Shown, shown


@dataclass(frozen=True)
class Video(Picture):
    """So many pictures, one after the other."""

    frames: int
    kind: ClassVar[str] = "video"

    def make(self) -> Any:
        import numpy as np

        size = (self.width, self.height)
        pictures = [Picture(*size, 100 * self.seed + frame) for frame in range(self.frames)]
        return np.stack([np.asarray(picture.make()) for picture in pictures])


@dataclass(frozen=True)
class Filmed(Shown):
    """A text, videos, a text."""

    def inputs(self, processor: Any) -> dict[str, Any]:
        """For ``transformers``' model, made by its processor."""
        given = {"videos": [video.make() for video in self.media]} if self.media else {}
        return dict(processor(text=self.text, return_tensors="pt", **given))


def filmed(mark: str, videos: Sequence[Video]) -> tuple[Case, ...]:
    """Six requests as ``shown`` makes them, of one video at most."""
    cases = (case for case in shown(mark, videos, at_once=1) if isinstance(case, Shown))
    return tuple(Filmed(case.mark, case.before, case.media, case.after) for case in cases)
