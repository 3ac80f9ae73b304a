"""Processors of models that ``transformers`` has under another name.

Each function leaves in the model's folder what the host reads and returns what ``transformers``'
class takes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.zoo.processors import SIDE
from tests.zoo.tokens import write_tokenizer

OVIS_ATOM = 980  # a tile's tokens for transformers' Ovis; the next five part them
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
INTERN = {
    "context_image_token": "<IMG_CONTEXT>",
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "video_token": "<video>",
}
# Configs that come as code, which name the text's as they like.
CONFIG_CODE = """
from transformers import AutoConfig, PretrainedConfig


class Config(PretrainedConfig):
    model_type = "{model_type}"

    def __init__(self, vision_config=None, {text}=None, **others):
        self.vision_config = PretrainedConfig(**(vision_config or {{}}))
        self.{text} = AutoConfig.for_model(**({text} or {{"model_type": "{text_type}"}}))
        super().__init__(**others)
"""


@dataclass(frozen=True)
class Remarked:
    """A processor to which an image's ``mark`` is what the host calls ``host_mark``."""

    processor: Any
    host_mark: str
    mark: str

    def __call__(self, text: str, **given: Any) -> Any:
        return self.processor(text=text.replace(self.host_mark, self.mark), **given)


@dataclass(frozen=True)
class Pixels:
    """The host's processor; ``transformers``' model calls its pixels otherwise."""

    processor: Any

    def __call__(self, **given: Any) -> Any:
        inputs = dict(self.processor(**given))
        inputs.pop("image_num_patches", None)
        if "pixel_values_flat" in inputs:
            inputs["pixel_values"] = inputs.pop("pixel_values_flat")
        return inputs


def write_config_code(
    folder: Path, model_type: str, text: str = "llm_config", text_type: str = "qwen2"
) -> None:
    """Its class is ``config_code.Config``; text: its name for the text's."""
    code = CONFIG_CODE.format(model_type=model_type, text=text, text_type=text_type)
    (folder / "config_code.py").write_text(code)


def internvl_chat(folder: Path) -> Any:
    write_config_code(folder, "internvl_chat")
    return _internvl_chat(folder)


def skywork_chat(folder: Path) -> Any:
    write_config_code(folder, "skywork_chat")
    return _internvl_chat(folder)


def _internvl_chat(folder: Path) -> Any:
    """One to four tiles and a small picture of the whole, cut by PIL as the published code does."""
    from transformers import InternVLProcessor, InternVLVideoProcessor
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    tokenizer = write_tokenizer(folder, list(INTERN.values()), extra_special_tokens=INTERN)
    tile = {"height": SIDE, "width": SIDE}
    images = GotOcr2ImageProcessorPil(size=tile, crop_to_patches=True, max_patches=4, **IMAGENET)
    videos = InternVLVideoProcessor(size=tile)
    processor = InternVLProcessor(images, tokenizer, videos, image_seq_length=4)
    return Remarked(processor, "<image>", "<IMG_CONTEXT>")


def h2ovl_chat(folder: Path) -> Any:
    """An image alone is cut twice, into tiles of two shapes, which ``transformers`` has not."""
    from vllm.transformers_utils.processors.h2ovl import H2OVLImageProcessor, H2OVLProcessor

    write_config_code(folder, "h2ovl_chat", text_type="mistral")
    tokenizer = write_tokenizer(folder, list(INTERN.values()))
    images = H2OVLImageProcessor(SIDE, 1, 6, True, True, use_msac=True)
    return Pixels(H2OVLProcessor(images, tokenizer, image_seq_length=4))


def interns1(folder: Path) -> Any:
    from tests.zoo.processors import internvl

    write_config_code(folder, "interns1", text="text_config")
    return internvl(folder)


def lighton_ocr(folder: Path) -> Any:
    """The host reads its folder as Pixtral's."""
    from transformers import LightOnOcrProcessor, PixtralImageProcessor, PixtralProcessor

    named = {
        "image_token": "<|image_pad|>",
        "image_break_token": "<|vision_pad|>",
        "image_end_token": "<|vision_end|>",
    }
    tokenizer = write_tokenizer(folder, list(named.values()), extra_special_tokens=named)
    size = {"longest_edge": 2 * SIDE}
    sizes = {"patch_size": 14, "spatial_merge_size": 2}
    images = PixtralImageProcessor(size=size, patch_size=14)
    PixtralProcessor(images, tokenizer, **sizes, **named).save_pretrained(folder)
    images = PixtralImageProcessor(size=size, patch_size=28)
    return LightOnOcrProcessor(images, tokenizer, **sizes)


def opencua(folder: Path) -> Any:
    """The host makes Qwen2-VL's of what the image processor's config says."""
    from transformers import Qwen2VLProcessor, Qwen2VLVideoProcessor

    from tests.zoo.processors import _qwen_images

    mark = "<|media_placeholder|>"
    write_config_code(folder, "opencua", text="text_config")
    named = {"image_token": mark, "video_token": "<|video_pad|>"}
    tokenizer = write_tokenizer(folder, list(named.values()), extra_special_tokens=named)
    images = _qwen_images(14)
    images.save_pretrained(folder)
    return Qwen2VLProcessor(images, tokenizer, Qwen2VLVideoProcessor())


def kimi_k25(folder: Path) -> Any:
    """The host's reads its own words for what ``transformers``' does."""
    from transformers import Kimi_K25ImageProcessor, Kimi_K25Processor, Kimi_K25VideoProcessor

    extra = ["<|media_pad|>", "<|media_begin|>", "<|media_content|>", "<|media_end|>"]
    tokenizer = write_tokenizer(folder, [*extra, "<|kimi_k25_video_placeholder|>"])
    words = {
        "in_patch_limit": 100,
        "patch_size": 14,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "merge_kernel_size": 2,
        "fixed_output_tokens": None,
        "patch_limit_on_one_side": 512,
        "in_patch_limit_each_frame": 100,
        "in_patch_limit_video": None,
        "temporal_merge_kernel_size": 4,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps({"media_proc_cfg": words}))
    images = Kimi_K25ImageProcessor(max_patches=100)
    return Kimi_K25Processor(images, tokenizer, Kimi_K25VideoProcessor())


@dataclass(frozen=True)
class Indicated:
    """The host's processor of Ovis, which writes one token for all that an image's are; to
    ``transformers`` those that begin, part and end its tiles are ``first`` and what follows."""

    processor: Any
    atom: int
    first: int

    def __call__(self, text: str, images: Any = None, **given: Any) -> dict[str, Any]:
        import torch

        made = self.processor(text=text, images=images)
        told = made["input_ids"].clone()
        where = (told[0] == self.processor.get_token_value("image_pad")).nonzero()[:, 0]
        meant: list[int] = []
        for grid in made.get("grids", ()):
            for token in self.processor.construct_image_indicators(grid):
                is_atom = token == self.processor.get_token_value("image_atom")
                length = 1 + self.processor.image_segment_len
                begun = self.processor.get_token_value("image_start")
                meant += [self.atom] * length if is_atom else [self.first + begun - token]
        told[0, where] = torch.tensor(meant, dtype=told.dtype)
        inputs = {"input_ids": made["input_ids"], "told_ids": told}
        if "pixel_values" in made:
            inputs["pixel_values"] = torch.cat(made["pixel_values"])
        return inputs


def ovis(folder: Path) -> Any:
    from transformers import CLIPImageProcessor
    from vllm.transformers_utils.processors.ovis import OvisProcessor

    tokenizer = write_tokenizer(folder, ["<image>", "<|image_pad|>"])
    images = CLIPImageProcessor(size={"shortest_edge": SIDE}, do_center_crop=False)
    images.save_pretrained(folder)
    processor = OvisProcessor(
        images, tokenizer, image_pad_token="<|image_pad|>", image_segment_len=3
    )
    return Indicated(processor, OVIS_ATOM, OVIS_ATOM + 1)
