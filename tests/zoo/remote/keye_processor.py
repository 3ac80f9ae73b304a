"""The processors of Keye-VL: images, and frames of videos, in whole patches."""

from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoTokenizer, BatchFeature
from transformers.processing_utils import ProcessorMixin

TOKEN = 28  # pixels of a token's side, two patches of 14
LEAST, MOST = 4 * TOKEN**2, 16 * TOKEN**2  # pixels of an image


class KeyeProcessor(ProcessorMixin):
    image_token, video_token, frame_token = "<|image_pad|>", "<|video_pad|>", "<|frame|>"
    fast_start, fast_end = "<|fast_start|>", "<|fast_end|>"

    def __init__(self, tokenizer: Any) -> None:
        from transformers import PaddleOCRVLImageProcessor

        self.tokenizer = tokenizer
        self.chat_template = None
        self.cut = PaddleOCRVLImageProcessor(size={"shortest_edge": LEAST, "longest_edge": MOST})
        # What the host reads.
        size = {"min_pixels": LEAST, "max_pixels": MOST}
        self.image_processor = SimpleNamespace(size=size, merge_size=2)

    @classmethod
    def from_pretrained(cls, folder: Any, *_: Any, **__: Any) -> Any:
        return cls(AutoTokenizer.from_pretrained(folder))

    def __call__(
        self, text: Any = None, images: Any = None, videos: Any = None, **_: Any
    ) -> BatchFeature:
        """A text with all tokens of its media; pixel_values [patches, 3, side, side] of images,
        pixel_values_videos of frames, image_grid_thw [images, 3] and video_grid_thw [frames, 3]
        their lines and columns behind a 1, num_frames [videos]."""
        text = text if isinstance(text, str) else text[0]
        made: dict[str, Any] = {}
        if images:
            cut = self.cut(images, return_tensors="pt")
            made["pixel_values"], made["image_grid_thw"] = cut.pixel_values, cut.image_grid_thw
            for tokens in _tokens(cut.image_grid_thw):
                text = text.replace(self.image_token, "<seen>" * tokens, 1)
            text = text.replace("<seen>", self.image_token)
        if videos:
            cut = self.cut([frame for video in videos for frame in video], return_tensors="pt")
            made["pixel_values_videos"] = cut.pixel_values
            made["video_grid_thw"] = cut.image_grid_thw
            made["num_frames"] = torch.tensor([len(video) for video in videos])
            grids = cut.image_grid_thw.split(made["num_frames"].tolist())
            for of_frames in map(_tokens, grids):
                frames = "".join(self.frame_token + "<seen>" * tokens for tokens in of_frames)
                text = text.replace(self.video_token, frames, 1)
            text = text.replace("<seen>", self.video_token)
        return BatchFeature({**self.tokenizer(text, return_tensors="pt"), **made})


def _tokens(grids: torch.Tensor) -> list[int]:
    counts: list[int] = (grids.prod(-1) // 4).tolist()
    return counts
