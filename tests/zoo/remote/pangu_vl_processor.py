"""The processor of openPangu-VL: the pixels of images as they are, which the model makes numbers
of, and numbers of videos."""

from typing import Any

from transformers import AutoTokenizer, BatchFeature
from transformers.processing_utils import ProcessorMixin

TOKEN = 28  # pixels of a token's side, two patches of 14
SIZE = {"shortest_edge": 4 * TOKEN**2, "longest_edge": 16 * TOKEN**2}  # pixels of an image


class OpenPanguVLProcessor(ProcessorMixin):
    image_token, video_token = "[unused19]", "[unused32]"
    vision_start_token, vision_end_token = "[unused18]", "[unused20]"

    def __init__(self, tokenizer: Any) -> None:
        # Here, as they need torchvision.
        from transformers import Qwen2VLImageProcessor, Qwen2VLVideoProcessor

        self.tokenizer = tokenizer
        self.chat_template = None
        self.image_processor = Qwen2VLImageProcessor(size=SIZE)  # what the model reads
        self.cut = Qwen2VLImageProcessor(size=SIZE, do_rescale=False, do_normalize=False)
        self.video_processor = Qwen2VLVideoProcessor(size=SIZE)

    @classmethod
    def from_pretrained(cls, folder: Any, *_: Any, **__: Any) -> Any:
        return cls(AutoTokenizer.from_pretrained(folder))

    def __call__(
        self, text: Any = None, images: Any = None, videos: Any = None, **_: Any
    ) -> BatchFeature:
        """A text with all tokens of its media, and marks between those of frames; pixel_values
        [patches, 3 * side * side] of images, pixel_values_videos [patches, 3 * 2 * side * side]
        of pairs of frames; image_grid_thw, video_grid_thw [media, 3]."""
        text = text or ""
        text = text if isinstance(text, str) else text[0]
        made: dict[str, Any] = {}
        if images:
            cut = self.cut(images, return_tensors="pt")
            twice = cut.pixel_values.unflatten(1, (3, 2, -1))  # each image is a pair of itself
            made["pixel_values"] = twice[:, :, 0].flatten(1)
            made["image_grid_thw"] = cut.image_grid_thw
            for _, lines, columns in cut.image_grid_thw.tolist():
                text = text.replace(self.image_token, "<seen>" * (lines * columns // 4), 1)
            text = text.replace("<seen>", self.image_token)
        if videos:
            cut = self.video_processor(list(videos), do_sample_frames=False, return_tensors="pt")
            made["pixel_values_videos"] = cut.pixel_values_videos
            made["video_grid_thw"] = cut.video_grid_thw
            between = self.vision_end_token + self.vision_start_token
            for times, lines, columns in cut.video_grid_thw.tolist():
                seen = between.join(["<seen>" * (lines * columns // 4)] * times)
                text = text.replace(self.video_token, seen, 1)
            text = text.replace("<seen>", self.video_token)
        return BatchFeature({**self.tokenizer(text, return_tensors="pt"), **made})
