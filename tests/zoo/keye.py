"""Keye-VL: PaddleOCR-VL's encoder before Qwen 3, whose positions are of time, line and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel, Qwen3Model
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.paddleocr_vl.modeling_paddleocr_vl import (
    PaddleOCRProjector,
    PaddleOCRVisionModel,
)

from tests.zoo import remote
from tests.zoo.remote.keye_config import KeyeConfig, KeyeVL1_5Config
from tests.zoo.remote.keye_processor import KeyeProcessor
from tests.zoo.tokens import write_tokenizer

IMAGE = f"<|vision_start|>{KeyeProcessor.image_token}<|vision_end|>"
VIDEO = f"<|vision_start|>{KeyeProcessor.video_token}<|vision_end|>"
MERGED = 2  # patches along a side that are one token


class KeyeForConditionalGeneration(PreTrainedModel):
    config_class = KeyeConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        config.text_config = config  # as the projector reads it
        self.visual = PaddleOCRVisionModel._from_config(config.vision_config)
        embeddings = self.visual.vision_model.embeddings
        embeddings.interpolation_align_corners = False
        # Of images of one size, which nobody asks.
        embeddings.packing_position_embedding = torch.nn.Embedding(32768, embeddings.embed_dim)
        self.mlp_AR = self._projector(config)
        del config.text_config
        self.model = Qwen3Model._from_config(config)
        self.model.rotary_emb = Turns(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _projector(self, config: Any) -> PaddleOCRProjector:
        return PaddleOCRProjector(config)

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
        pixel_values_videos: torch.Tensor | None = None,
        video_grid_thw: torch.Tensor | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        """As the processor makes them; ``input_ids`` [1, n].  A video comes after images."""
        states = self.model.embed_tokens(input_ids)
        grids: list[list[int]] = []
        for pixels, sizes, token in (
            (pixel_values, image_grid_thw, self.config.image_token_id),
            (pixel_values_videos, video_grid_thw, self.config.video_token_id),
        ):
            if pixels is not None and sizes is not None:
                seen = self.visual(pixels[None], sizes).last_hidden_state
                seen = self.mlp_AR(seen, sizes)
                where = (input_ids[0] == token).nonzero()[: len(seen), 0]
                states = states.index_copy(1, where, seen[None])
                grids += sizes.tolist()
        self.model.rotary_emb.places = self._places(input_ids[0].tolist(), grids)
        made = self.model(inputs_embeds=states, use_cache=False).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(made))

    def _places(self, ids: list[int], grids: list[list[int]]) -> torch.Tensor:
        """Times, lines and columns [3, n]: a text's token is one further in all of them."""
        pads = (self.config.image_token_id, self.config.video_token_id)
        places: list[torch.Tensor] = []
        number, following, left = 0, 0, iter(grids)
        while number < len(ids):
            grid = next(left, None) if ids[number] in pads else None
            sides = [1, 1, 1] if grid is None else [1, *(side // MERGED for side in grid[1:])]
            block = torch.cartesian_prod(*map(torch.arange, sides)).T
            places.append(block + following)
            number += block.shape[1]
            following += max(sides)
        return torch.cat(places, 1)


class KeyeVL1_5ForConditionalGeneration(KeyeForConditionalGeneration):  # noqa: N801
    config_class = KeyeVL1_5Config

    def _projector(self, config: Any) -> PaddleOCRProjector:
        return LateProjector(config)


class LateProjector(PaddleOCRProjector):
    """Norms tokens, not patches."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.pre_norm = torch.nn.LayerNorm(self.linear_1.in_features, 1e-5)

    def forward(self, patches: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
        """``patches`` [of all images, size]; tokens [of all, hidden]."""
        tokens = []
        for one, (_, lines, columns) in zip(
            patches.split(grids.prod(1).tolist()), grids.tolist(), strict=True
        ):
            blocks = one.unflatten(0, (lines // MERGED, MERGED, columns // MERGED, MERGED))
            tokens.append(blocks.transpose(1, 2).flatten(2).flatten(0, 1))
        normed = self.pre_norm(torch.cat(tokens))
        return self.linear_2(self.act(self.linear_1(normed)))


class Turns(torch.nn.Module):
    """Cosines and sines of ``places`` [3, n], each of whose rows turns some of the channels."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        rope, half = config.rope_parameters, config.head_dim // 2
        self.register_buffer(
            "frequencies", rope["rope_theta"] ** -(torch.arange(half) / half), persistent=False
        )
        self.sections = rope["mrope_section"]
        self.places = torch.zeros(3, 0)

    def forward(self, x: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = self.places[..., None].float() * self.frequencies.float()
        parts = angles.split(self.sections, -1)
        own = torch.cat([part[row] for row, part in enumerate(parts)], -1).repeat(1, 2)[None]
        return own.cos().to(x.dtype), own.sin().to(x.dtype)


for made in (KeyeConfig, KeyeVL1_5Config):
    AutoConfig.register(made.model_type, made)


def processor(folder: Path) -> KeyeProcessor:
    known = KeyeProcessor
    extra = [known.image_token, known.video_token, known.frame_token]
    extra += ["<|vision_start|>", "<|vision_end|>", known.fast_start, known.fast_end]
    write_tokenizer(folder, extra)
    remote.put("keye_config", folder)
    remote.copied("keye_processor", "KeyeProcessor", folder)
    made: KeyeProcessor = KeyeProcessor.from_pretrained(folder)
    return made


def published(config: dict[str, object]) -> dict[str, object]:
    """With the class that comes with the checkpoint."""
    made = "KeyeConfig" if config["model_type"] == "keye" else "KeyeVL1_5Config"
    return {**config, "auto_map": {"AutoConfig": f"keye_config.{made}"}}
