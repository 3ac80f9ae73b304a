"""Ernie 4.5 VL as published, which the host reads: a config without parts for text, and a processor
that leaves pixels as they are, both as code of the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.zoo.processors import _image_processor, four_to
from tests.zoo.tokens import write_tokenizer

TOKENS = {
    "image_start_token": "<|IMAGE_START|>",
    "image_end_token": "<|IMAGE_END|>",
    "image_token": "<|IMAGE_PLACEHOLDER|>",
    "video_start_token": "<|VIDEO_START|>",
    "video_end_token": "<|VIDEO_END|>",
    "video_token": "<|VIDEO_PLACEHOLDER|>",
}
MARK = "<|image@placeholder|>"  # of an image, until its tokens are known
VIDEO_MARK = "<|video@placeholder|>"
CODE = """
import torch
from transformers import BatchFeature, Ernie4_5_VLMoeProcessor, PretrainedConfig


class Config(PretrainedConfig):
    model_type = "ernie4_5_moe_vl"

    def __init__(self, vision_config=None, **others):
        self.vision_config = PretrainedConfig(**(vision_config or {}))
        super().__init__(**others)


class Processor(Ernie4_5_VLMoeProcessor):
    spatial_conv_size = temporal_conv_size = 2

    def __init__(self, image_processor=None, tokenizer=None, video_processor=None, **others):
        super().__init__(image_processor, tokenizer, video_processor, **others)
        least, most = image_processor.size.shortest_edge, image_processor.size.longest_edge
        self.edges = {"shortest_edge": least, "longest_edge": most}
        image_processor.size = {"min_pixels": least, "max_pixels": most}

    def __call__(self, text=None, images=None, videos=None, **others):
        found = {}
        if images:
            raw = {"do_rescale": False, "do_normalize": False, "size": self.edges}
            made = self.image_processor(images, return_tensors="pt", **raw)
            found = {"images": made["pixel_values"], "grid_thw": made["image_grid_thw"]}
        if videos:
            raw = {"do_rescale": False, "do_normalize": False, "do_sample_frames": False}
            made = self.video_processor(videos, return_tensors="pt", **raw)
            film = {"images": made["pixel_values_videos"], "grid_thw": made["video_grid_thw"]}
            found = {k: torch.cat([found[k], film[k]]) if found else film[k] for k in film}
        return BatchFeature({**self.tokenizer(text), **found})
"""


class Marked:
    """``transformers``' processor for prompts in which MARK stands for an image, VIDEO_MARK for
    a video."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, text: str, **given: Any) -> Any:
        told = text.replace(MARK, TOKENS["image_token"])
        made = self.processor(text=told.replace(VIDEO_MARK, TOKENS["video_token"]), **given)
        # The host has the tokens of images for those of videos, too.
        told, own = made["input_ids"], self.processor
        ids = told.where(told != own.video_token_id, own.image_token_id)
        return {**made, "input_ids": ids, "told_ids": told}


def processor(folder: Path) -> Any:
    from transformers import Ernie4_5_VLMoeProcessor, Ernie4_5_VLMoeVideoProcessor

    extra = [*TOKENS.values(), MARK, VIDEO_MARK]
    tokenizer = write_tokenizer(folder, extra, extra_special_tokens=TOKENS)
    images = _image_processor("Ernie4_5_VLMoe", size=four_to(16, 14))
    videos = Ernie4_5_VLMoeVideoProcessor(draw_on_frames=False, size=four_to(16, 14))
    made = Ernie4_5_VLMoeProcessor(images, tokenizer, videos)
    made.save_pretrained(folder)
    (folder / "published_code.py").write_text(CODE)
    path = folder / "processor_config.json"
    config = json.loads(path.read_text())
    config["auto_map"] = {"AutoProcessor": "published_code.Processor"}
    path.write_text(json.dumps(config))
    return Marked(made)


def published_config(config: dict[str, Any]) -> dict[str, Any]:
    """Of the one that ``transformers`` writes."""
    text, vision = config.pop("text_config"), config["vision_config"]
    last = text["num_hidden_layers"] - 1
    return {
        **text,
        **config,
        "model_type": "ernie4_5_moe_vl",
        "auto_map": {"AutoConfig": "published_code.Config"},
        "vision_config": {
            **vision,
            "embed_dim": vision["hidden_size"],
            "mlp_ratio": vision["intermediate_size"] // vision["hidden_size"],
        },
        "im_patch_id": config["image_token_id"],
        "pixel_hidden_size": vision["hidden_size"],
        "spatial_conv_size": vision["spatial_merge_size"],
        "temporal_conv_size": vision["temporal_merge_size"],
        "use_temporal_conv": True,
        "freq_allocation": text["rope_parameters"]["mrope_section"][-1],
        "moe_num_experts": [text["moe_num_experts"]] * 2,
        "moe_layer_start_index": [1, 1],
        "moe_layer_end_index": [last, last],
    }
