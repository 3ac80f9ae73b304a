"""Processors as in ``processors``, of images in tiles beside a view of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.zoo.processors import SIDE, _image_processor, _keep
from tests.zoo.tokens import write_tokenizer

MINICPM = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}


def minicpmv4_6(folder: Path) -> Any:
    return _minicpmv("MiniCPMV4_6", folder)


def minicpmv4_7(folder: Path) -> Any:
    return _minicpmv("MiniCPMV4_7", folder)


def _minicpmv(name: str, folder: Path) -> Any:
    """Tiles and wholes of two by two to two by three tokens, each of four by four patches."""
    import transformers

    extra = [*MINICPM.values(), "\n"]
    tokenizer = write_tokenizer(folder, extra, extra_special_tokens=MINICPM)
    size = {"scale_resolution": 80, "patch_size": 8}
    images = _image_processor("MiniCPMV4_6", **size)
    videos = transformers.MiniCPMV4_6VideoProcessor(**size)
    return _keep(getattr(transformers, f"{name}Processor")(images, videos, tokenizer), folder)


def granite4_vision(folder: Path) -> Any:
    from transformers import Granite4VisionProcessor

    tile = {"height": 64, "width": 64}
    tiles = [[64, 128], [128, 64], [128, 128]]
    return _keep(
        Granite4VisionProcessor(
            _image_processor("LlavaNext", size=tile, crop_size=tile, image_grid_pinpoints=tiles),
            write_tokenizer(folder, ["<image>"]),
            patch_size=8,
            vision_feature_select_strategy="full",
            downsample_rate="2/4",
        ),
        folder,
    )


def qianfan_ocr(folder: Path) -> Any:
    from transformers import QianfanOCRProcessor

    named = {
        "context_image_token": "<IMG_CONTEXT>",
        "start_image_token": "<img>",
        "end_image_token": "</img>",
    }
    tokenizer = write_tokenizer(folder, [*named.values(), "<image>"], extra_special_tokens=named)
    tile = {"height": SIDE, "width": SIDE}
    images = _image_processor(
        "GotOcr2",
        size=tile,
        crop_to_patches=True,
        max_patches=4,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    )
    return _keep(QianfanOCRProcessor(images, tokenizer, image_seq_length=4), folder)
