"""Processors, as in ``renamed_processors``, of more models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.zoo import remote
from tests.zoo.processors import _keep, _qwen_images, four_to, qwen3_vl
from tests.zoo.renamed_processors import write_config_code
from tests.zoo.tokens import write_tokenizer


def hyperclovax_vision_v2(folder: Path) -> Any:
    from transformers import HyperCLOVAXVisionV2Processor, Qwen2VLVideoProcessor

    named = {"image_token": "<|IMAGE_PAD|>", "video_token": "<|VIDEO_PAD|>"}
    tokenizer = write_tokenizer(folder, list(named.values()), extra_special_tokens=named)
    videos = Qwen2VLVideoProcessor(size=four_to(16, 14))
    return _keep(HyperCLOVAXVisionV2Processor(_qwen_images(14), tokenizer, videos), folder)


@dataclass(frozen=True)
class Timed:
    """A processor whose images have no time, which ``transformers``' model asks for."""

    processor: Any

    def __call__(self, **given: Any) -> dict[str, Any]:
        import torch

        made = dict(self.processor(**given))
        if "image_grid_hws" in made:
            sides = made.pop("image_grid_hws")
            made["image_grid_thw"] = torch.nn.functional.pad(sides, (1, 0), value=1)
        return made


def kimi_vl(folder: Path) -> Any:
    from tests.zoo.remote.kimi_vl_processor import KimiVLProcessor

    extra = ["<|media_pad|>", "<|media_start|>", "<|media_content|>", "<|media_end|>"]
    write_tokenizer(folder, extra)
    remote.copied("kimi_vl_processor", "KimiVLProcessor", folder)
    return Timed(KimiVLProcessor.from_pretrained(folder))


def phi3v(folder: Path) -> Any:
    from tests.zoo.remote.phi3v_processor import Phi3VProcessor

    write_tokenizer(folder, Phi3VProcessor.img_tokens)
    remote.copied("phi3v_processor", "Phi3VProcessor", folder)
    return Phi3VProcessor.from_pretrained(folder)


def interns2_preview(folder: Path) -> Any:
    write_config_code(folder, "interns2_preview", "text_config", "qwen3_5_moe_text")
    return qwen3_vl(folder)
