"""How MiniCPM-V cuts an image: a view of the whole, and slices where it is larger than that."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor

SIDE, PATCH = 56, 14  # published checkpoints have views of the area of 448 by 448
SLICES, TOKENS = 4, 8  # at most, and of each view
UNKNOWN = "<unk>"  # stands for a token of an image or a sound


class MiniCPMVImageProcessor(BaseImageProcessor):
    im_id_start, im_id_end = "<image_id>", "</image_id>"  # which the host reads
    image_feature_size = TOKENS

    def __init__(self, max_slice_nums: int = SLICES, **others: Any) -> None:
        super().__init__(**others)
        self.max_slice_nums = max_slice_nums

    def __call__(self, images: Any, max_slice_nums: int | None = None, **_: Any) -> BatchFeature:
        """Of each list of images, the views one after the other: patches side by side [3, PATCH,
        columns], how many of them there are in a column and a row, and the images' sizes."""
        images = [[*map(_picture, some)] for some in images]
        most = max_slice_nums or self.max_slice_nums
        cut = [[view for image in some for view in self._views(image, most)] for some in images]
        counts = [[[side // PATCH for side in view.shape[1:]] for view in some] for some in cut]
        return BatchFeature(
            {
                "pixel_values": [[_side_by_side(view) for view in some] for some in cut],
                "image_sizes": [[image.size for image in some] for some in images],
                "tgt_sizes": [torch.tensor(some, dtype=torch.int32) for some in counts],
            }
        )

    def get_sliced_grid(
        self, image_size: Sequence[int], max_slice_nums: int
    ) -> tuple[int, int] | None:
        """Columns and rows of the slices: their number by the area, their shape as near to a square
        as may be."""
        width, height = image_size
        wanted = min(math.ceil(width * height / SIDE**2), max_slice_nums)
        if wanted <= 1:
            return None
        numbers = [n for n in range(wanted - 1, wanted + 2) if 1 < n <= max_slice_nums]
        grids = [(n, of // n) for of in numbers for n in range(1, of + 1) if of % n == 0]
        ratio = math.log(width / height)
        return min(grids, key=lambda grid: abs(ratio - math.log(grid[0] / grid[1])))

    def get_slice_image_placeholder(
        self,
        image_size: Sequence[int],
        image_idx: int = 0,
        max_slice_nums: int | None = None,
        use_image_id: bool | None = None,
    ) -> str:
        """The image's number, its whole, and a line of each row of slices."""
        grid = self.get_sliced_grid(image_size, max_slice_nums or self.max_slice_nums)
        columns, rows = grid or (0, 0)
        number = "" if use_image_id is False else f"{self.im_id_start}{image_idx}{self.im_id_end}"
        view = UNKNOWN * TOKENS
        lines = [f"<slice>{view}</slice>" * columns] * rows
        return f"{number}<image>{view}</image>" + "\n".join(lines)

    def _views(self, image: Any, most: int) -> list[torch.Tensor]:
        """[3, height, width] of the whole and of the slices, row by row."""
        width, height = image.size
        whole = _scaled(image, *_fitted(width, height))
        grid = self.get_sliced_grid(image.size, most)
        if grid is None:
            return [whole]
        columns, rows = grid
        wide, high = _fitted(_multiple(width, columns) / columns, _multiple(height, rows) / rows)
        large = _scaled(image, columns * wide, rows * high)
        return [whole, *(part for line in large.split(high, 1) for part in line.split(wide, 2))]


def _picture(image: Any) -> Any:
    """Frames of a video come as numbers."""
    return image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image))


def _fitted(width: float, height: float) -> tuple[int, int]:
    """Sides in whole patches of about the area of a view, in the ratio of these."""
    high = int(SIDE / math.sqrt(width / height))
    wide = int(high * (width / height))
    return _multiple(wide, PATCH), _multiple(high, PATCH)


def _multiple(length: float, of: int) -> int:
    return max(round(length / of), 1) * of


def _scaled(image: Any, width: int, height: int) -> torch.Tensor:
    scaled = np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC))
    return torch.from_numpy((scaled / 255 - 0.5) / 0.5).float().permute(2, 0, 1)


def _side_by_side(view: torch.Tensor) -> torch.Tensor:
    patches = view.unflatten(1, (-1, PATCH)).unflatten(3, (-1, PATCH))
    return patches.transpose(1, 2).flatten(2)
