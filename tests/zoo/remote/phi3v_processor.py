"""The processor of Phi-3 vision: an image as tiles of 336 pixels, and a small picture of it."""

import math
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer, BatchFeature
from transformers.processing_utils import ProcessorMixin

SIDE, TILES = 336, 2
IMAGE_TOKEN = 32044  # the number of published checkpoints, which the host knows
MEAN, DEVIATION = (0.481, 0.458, 0.408), (0.269, 0.261, 0.276)


class Phi3VProcessor(ProcessorMixin):
    img_tokens = tuple(f"<|image_{number}|>" for number in range(1, 9))

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.chat_template = None

    @classmethod
    def from_pretrained(cls, folder: Any, *_: Any, **__: Any) -> Any:
        return cls(AutoTokenizer.from_pretrained(folder))

    def calc_num_image_tokens_from_image_size(self, width: int, height: int) -> int:
        """What rows and columns of tiles come to, with the ends of lines and what parts them from
        the picture of the whole."""
        columns, rows = _tiles(width, height)
        return 144 * (columns * rows + 1) + 12 * (rows + 1) + 1

    def __call__(self, text: Any = None, images: Any = None, **_: Any) -> BatchFeature:
        """A text with the tokens of its images; pixels [images, 1 + TILES, 3, SIDE, SIDE]."""
        text = text if isinstance(text, str) else text[0]
        images = images or []
        ids: list[int] = []
        for number, image in enumerate(images):
            before, text = text.split(self.img_tokens[number])
            ids += self.tokenizer(before).input_ids
            count = self.calc_num_image_tokens_from_image_size(*image.size)
            ids += [IMAGE_TOKEN] * count
        ids += self.tokenizer(text).input_ids
        made: dict[str, Any] = {"input_ids": torch.tensor([ids])}
        if images:
            sizes = [[SIDE * n for n in reversed(_tiles(*image.size))] for image in images]
            made["image_sizes"] = torch.tensor(sizes)
            made["pixel_values"] = torch.stack([_pixels(image) for image in images])
        return BatchFeature(made)


def _tiles(width: int, height: int) -> tuple[int, int]:
    """Columns and rows: as many along the longer side as TILES allow."""
    ratio = max(width, height) / min(width, height)
    longer = 1
    while (longer + 1) * math.ceil((longer + 1) / ratio) <= TILES:
        longer += 1
    shorter = math.ceil(longer / ratio)
    return (longer, shorter) if width >= height else (shorter, longer)


def _pixels(image: Any) -> torch.Tensor:
    """The whole, its tiles, and zeros for those that it has not."""
    columns, rows = _tiles(*image.size)
    whole = _scaled(image, SIDE, SIDE)
    large = _scaled(image, SIDE * columns, SIDE * rows)
    tiles = large.unfold(1, SIDE, SIDE).unfold(2, SIDE, SIDE).permute(1, 2, 0, 3, 4).flatten(0, 1)
    missing = torch.zeros(TILES - len(tiles), *whole.shape)
    return torch.cat([whole[None], tiles, missing])


def _scaled(image: Any, width: int, height: int) -> torch.Tensor:
    scaled = np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR))
    normal = (scaled / 255 - np.array(MEAN)) / np.array(DEVIATION)
    return torch.from_numpy(normal).float().permute(2, 0, 1)
