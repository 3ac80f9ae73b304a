"""The processors of Molmo and Molmo 2: an image whole, and in crops that overlap."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from transformers import AutoTokenizer, BatchFeature
from transformers.processing_utils import ProcessorMixin

PATCH, SIDE = 14, 112  # pixels of a patch's and of a crop's side
PATCHES = SIDE // PATCH
MARGIN, CROPS = 2, 4  # patches of a crop that the next one has, too; as many as an image may have
WINDOW = PATCHES - 2 * MARGIN
POOLED, POOLED_FRAME = 2, 3  # patches along the side of a token
BEGIN = "<|endoftext|>"
IMAGE, VIDEO = "<|image|>", "<|video|>"


class MolmoProcessor(ProcessorMixin):
    """Images come before the text, whatever it says."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.chat_template = None
        # What the host reads.
        self.image_processor = SimpleNamespace(
            base_image_input_size=(SIDE, SIDE),
            image_patch_size=PATCH,
            image_token_length_h=PATCHES // POOLED,
            image_token_length_w=PATCHES // POOLED,
            max_crops=CROPS,
            overlap_margins=(MARGIN, MARGIN),
        )

    @classmethod
    def from_pretrained(cls, folder: Any, *_: Any, **__: Any) -> Any:
        return cls(AutoTokenizer.from_pretrained(folder))

    def get_tokens_input(self, text: str, **_: Any) -> list[int]:
        """Of a text, with a space before it."""
        ids: list[int] = self.tokenizer(" " + text).input_ids
        return ids

    def process(
        self, text: str = "", images: Any = None, tokens: Any = None, **_: Any
    ) -> BatchFeature:
        """``input_ids`` [n]; of all crops, images [crops, patches, numbers], image_masks [crops,
        patches]: how much of a patch is the image's, and image_input_idx [crops, tokens]: a token's
        place in the prompt, -1 where it has none."""
        number = self.tokenizer.convert_tokens_to_ids
        patch, column, start, end = map(
            number, ("<im_patch>", "<im_col>", "<im_start>", "<im_end>")
        )
        ids = [number(BEGIN)]
        crops, shares, places = [], [], []
        for image in images or ():
            pixels, share, grids = _views(image, _padded)
            place = torch.full((len(pixels), PATCHES // POOLED, PATCHES // POOLED), -1)
            for grid in grids:
                ids.append(start)
                for line in grid[::POOLED, ::POOLED].tolist():
                    for source in line:
                        crop, patch_of_it = divmod(source, PATCHES**2)
                        at = (along // POOLED for along in divmod(patch_of_it, PATCHES))
                        place[crop, *at] = len(ids)
                        ids.append(patch)
                    ids.append(column)
                ids.append(end)
            crops.append(pixels)
            shares.append(share)
            places.append(place.flatten(1))
        ids += self.get_tokens_input(text) if tokens is None else tokens
        made: dict[str, Any] = {"input_ids": torch.tensor(ids)}
        if crops:
            made["images"] = torch.cat(crops)
            made["image_masks"] = torch.cat(shares)
            made["image_input_idx"] = torch.cat(places)
        return BatchFeature(made)


class Molmo2Processor(ProcessorMixin):
    image_use_col_tokens = True
    use_single_crop_col_tokens = None
    use_single_crop_start_token = True
    video_use_col_tokens = False
    use_frame_special_tokens = True

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.chat_template = None
        # What the host reads.
        sizes = {"size": {"height": SIDE, "width": SIDE}, "patch_size": PATCH}
        self.image_processor = SimpleNamespace(
            **sizes,
            max_crops=CROPS,
            overlap_margins=(MARGIN, MARGIN),
            pooling_size=(POOLED, POOLED),
        )
        self.video_processor = SimpleNamespace(
            **sizes, num_frames=8, pooling_size=(POOLED_FRAME, POOLED_FRAME)
        )

    @classmethod
    def from_pretrained(cls, folder: Any, *_: Any, **__: Any) -> Any:
        return cls(AutoTokenizer.from_pretrained(folder))

    def __call__(
        self,
        text: str = "",
        images: Any = None,
        videos: Any = None,
        video_metadata: Any = None,
        **_: Any,
    ) -> BatchFeature:
        """A text with all tokens of its media; of images, pixel_values [crops, patches, numbers],
        image_num_crops [images], image_grids [images, 4]: lines and columns of the whole and of the
        crops together, image_token_pooling [tokens, patches of a token], numbered from an image's
        first, -1 where there are fewer; likewise of frames, with video_grids [videos, 3]."""
        made: dict[str, Any] = {}
        if images:
            views = [_views(image, _resized) for image in images]
            pooled = [[_by_token(grid, POOLED) for grid in grids] for _, _, grids in views]
            sizes = [[side for tokens in both for side in tokens.shape[:2]] for both in pooled]
            made["pixel_values"] = torch.cat([pixels for pixels, _, _ in views])
            made["image_num_crops"] = torch.tensor([len(pixels) for pixels, _, _ in views])
            made["image_grids"] = torch.tensor(sizes)
            made["image_token_pooling"] = torch.cat(
                [tokens.flatten(0, 1) for both in pooled for tokens in both]
            )
            for size in sizes:
                text = text.replace(IMAGE, _image_words(*size), 1)
        if videos:
            # The host gives a list for each prompt.
            (video,), (said,) = (
                one[0] if isinstance(one[0], list) else one for one in (videos, video_metadata)
            )
            said = said if isinstance(said, dict) else vars(said)
            views = [_resized(Image.fromarray(frame), SIDE, SIDE) for frame in video]
            pooled = [_by_token(_numbers(frame), POOLED_FRAME) for frame in range(len(views))]
            lines, columns, _ = pooled[0].shape
            made["pixel_values_videos"] = torch.stack([_patches(pixels) for pixels, _ in views])
            made["video_token_pooling"] = torch.cat([tokens.flatten(0, 1) for tokens in pooled])
            made["video_grids"] = torch.tensor([[len(views), lines, columns]])
            times = [frame / said["fps"] for frame in said["frames_indices"]]
            text = text.replace(VIDEO, _video_words(times, lines * columns), 1)
        if made:  # the host does not ask about a text alone
            text = self.tokenizer.bos_token + text.removeprefix(self.tokenizer.bos_token)
        return BatchFeature({**self.tokenizer(text, return_tensors="pt"), **made})


def _image_words(lines: int, columns: int, more_lines: int, more_columns: int) -> str:
    whole = ("<im_patch>" * columns + "<im_col>") * lines
    crops = ("<im_patch>" * more_columns + "<im_col>") * more_lines
    return f"<low_res_im_start>{whole}<im_end><im_start>{crops}<im_end>"


def _video_words(times: list[float], tokens: int) -> str:
    frame = f"<frame_start>{'<im_patch>' * tokens}<frame_end>"
    return " ".join(f"{time:.1f} {frame}" for time in times)


def _views(image: Any, fit: Any) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """The whole and its crops [views, patches, numbers], how much of each patch is the image's, and
    the numbers of the patches [lines, columns] of the whole, and of the crops together."""
    lines, columns = _tiling(image.height, image.width)
    high, wide = (n * WINDOW + 2 * MARGIN for n in (lines, columns))
    fitted = [fit(image, SIDE, SIDE), fit(image, wide * PATCH, high * PATCH)]
    pixels, shares = ([part[which] for part in fitted] for which in (0, 1))
    step = WINDOW * PATCH
    crops = pixels[1].unfold(1, SIDE, step).unfold(2, SIDE, step).permute(1, 2, 0, 3, 4)
    share = shares[1].unfold(0, SIDE, step).unfold(1, SIDE, step).flatten(0, 1)
    views = [pixels[0], *crops.flatten(0, 1)]
    joint = torch.empty(high, wide, dtype=torch.long)
    # Of patches that two crops have, each has the half that lies further within it.
    for number, (line, column) in enumerate(itertools.product(range(lines), range(columns))):
        at = [
            slice(MARGIN * (n > 0), PATCHES - MARGIN * (n + 1 < count))
            for n, count in ((line, lines), (column, columns))
        ]
        window = joint[line * WINDOW :, column * WINDOW :][:PATCHES, :PATCHES]
        window[at[0], at[1]] = _numbers(1 + number)[at[0], at[1]]
    return (
        torch.stack([_patches(view) for view in views]),
        torch.stack([_patches(one[None]).mean(-1) for one in (shares[0], *share)]),
        [_numbers(0), joint],
    )


def _tiling(height: int, width: int) -> tuple[int, int]:
    """Lines and columns of crops: those that need no scaling down, and little scaling up; if all
    do, those that need the least."""
    window, margins = WINDOW * PATCH, 2 * MARGIN * PATCH

    def scale(grid: tuple[int, int]) -> float:
        sides = zip(grid, (height, width), strict=True)
        return min(n * window / max(side - margins, 1) for n, side in sides)

    grids = itertools.product(range(1, CROPS + 1), repeat=2)
    known = sorted((g for g in grids if g[0] * g[1] <= CROPS), key=lambda g: (g[0] * g[1], g[0]))
    enough = [grid for grid in known if scale(grid) >= 1]
    return min(enough, key=scale) if enough else max(known, key=scale)


def _numbers(view: int) -> torch.Tensor:
    """Of the patches of so many views, those of the last [PATCHES, PATCHES]."""
    return torch.arange(PATCHES**2).view(PATCHES, PATCHES) + view * PATCHES**2


def _by_token(grid: torch.Tensor, side: int) -> torch.Tensor:
    """``grid`` [lines, columns] of patches; [lines, columns, side * side] of tokens."""
    missing = [-length % side for length in reversed(grid.shape)]
    filled = torch.nn.functional.pad(grid, (0, missing[0], 0, missing[1]), value=-1)
    return filled.unfold(0, side, side).unfold(1, side, side).flatten(2)


def _patches(pixels: torch.Tensor) -> torch.Tensor:
    """``pixels`` [channels, SIDE, SIDE]; [patches, numbers], a pixel's channels together."""
    grid = pixels.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)
    return grid.permute(1, 2, 3, 4, 0).flatten(2).flatten(0, 1)


def _resized(image: Any, width: int, height: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[3, height, width], and how much of each pixel is the image's."""
    image = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    return _pixels(image), torch.ones(height, width)


def _padded(image: Any, width: int, height: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with black borders in place of another shape."""
    inner = ImageOps.contain(image.convert("RGB"), (width, height))
    left, top = (width - inner.width) // 2, (height - inner.height) // 2
    whole, share = Image.new("RGB", (width, height)), torch.zeros(height, width)
    whole.paste(inner, (left, top))
    share[top : top + inner.height, left : left + inner.width] = 1
    return _pixels(whole), share


def _pixels(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image) / 127.5 - 1).float().permute(2, 0, 1)
