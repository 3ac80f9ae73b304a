"""openPangu-VL: Qwen2.5-VL's encoder, of which two layers are seen, before Llama, whose positions
are of time, line and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, LlamaModel, PreTrainedModel
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
    Qwen2_5_VLPatchMerger,
    Qwen2_5_VLRMSNorm,
    get_vision_window_index,
)

from tests.zoo import remote
from tests.zoo.keye import KeyeForConditionalGeneration, Turns
from tests.zoo.remote.pangu_vl_config import OpenPanguVLConfig
from tests.zoo.remote.pangu_vl_processor import OpenPanguVLProcessor
from tests.zoo.tokens import write_tokenizer

KNOWN = OpenPanguVLProcessor
IMAGE, VIDEO = (
    KNOWN.vision_start_token + token + KNOWN.vision_end_token
    for token in (KNOWN.image_token, KNOWN.video_token)
)
NAMES = ((r"^visual\.merger\..*", ""), (r"^visual\.mergers", "visual.merger"))
SEEN = (-1, -3)  # layers, each with a merger of its own


class OpenPanguVLForConditionalGeneration(PreTrainedModel):
    config_class = OpenPanguVLConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.visual = Eyes._from_config(config.vision_config)
        self.visual.vision_projection = torch.nn.ModuleDict(
            {"fc1": torch.nn.Linear(config.vision_config.out_hidden_size, config.hidden_size)}
        )
        self.model = LlamaModel._from_config(config)
        self.model.rotary_emb = InTurns(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

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
                numbers = _twice(pixels) if token == self.config.image_token_id else pixels
                seen = self.visual(numbers.to(states.dtype), sizes)
                where = (input_ids[0] == token).nonzero()[: len(seen), 0]
                states = states.index_copy(1, where, seen[None])
                grids += [[1, *sides] for times, *sides in sizes.tolist() for _ in range(times)]
        self.model.rotary_emb.places = self._places(input_ids[0].tolist(), grids)
        made = self.model(inputs_embeds=states, use_cache=False).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(made))

    _places = KeyeForConditionalGeneration._places


def _twice(pixels: torch.Tensor) -> torch.Tensor:
    """``pixels`` [patches, 3 * side * side] from 0 to 255; numbers of each twice, one after the
    other in each colour."""
    colours = pixels.float().unflatten(1, (3, 1, -1)) / 255
    mean, deviation = (
        torch.tensor(of)[:, None, None] for of in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD)
    )
    return ((colours - mean) / deviation).expand(-1, -1, 2, -1).flatten(1)


class Eyes(Qwen2_5_VisionTransformerPretrainedModel):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        size = (config.out_hidden_size, config.hidden_size, config.spatial_merge_size)
        self.final_layernorm = Qwen2_5_VLRMSNorm(config.hidden_size, eps=1e-6)
        self.mergers = torch.nn.ModuleList(Qwen2_5_VLPatchMerger(*size) for _ in SEEN)
        for block in self.blocks:
            block.mlp = Ungated(config.hidden_size, config.intermediate_size)

    def forward(self, pixels: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
        """Tokens [of all media, hidden] of patches [of all, numbers]."""
        layers = super().forward(pixels, grids, output_hidden_states=True).hidden_states
        order, _ = get_vision_window_index(
            grids, self.spatial_merge_size, self.window_size, self.patch_size
        )
        tokens = sum(
            merger(self.final_layernorm(layers[layer]))
            for merger, layer in zip(self.mergers, SEEN, strict=True)
        )
        projected: torch.Tensor = self.vision_projection["fc1"](
            torch.nn.functional.silu(tokens[order.argsort()])
        )
        return projected


class Ungated(torch.nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.up_proj, self.down_proj = torch.nn.Linear(size, inner), torch.nn.Linear(inner, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.nn.functional.gelu(self.up_proj(x)))


class InTurns(Turns):
    """Times, lines and columns turn channels in turns, each as often as its section says."""

    def forward(self, x: torch.Tensor, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        angles = self.places[..., None].float() * self.frequencies.float()
        rows = torch.tensor(self._rows())
        own = angles[rows, :, torch.arange(len(rows))].T.repeat(1, 2)[None]
        return own.cos().to(x.dtype), own.sin().to(x.dtype)

    def _rows(self) -> list[int]:
        """Which of the three turns a channel: the one that has had the smallest share, never one
        twice while there is another; the last is a time's."""
        wanted = [self.sections[0] - 1, *self.sections[1:]]
        rows: list[int] = []
        while len(rows) < sum(wanted):
            shares = {
                row: rows.count(row) / number
                for row, number in enumerate(wanted)
                if rows.count(row) < number
            }
            others = [row for row in shares if row != rows[-1]] if rows else []
            rows.append(min(others or shares, key=lambda row: (shares[row], row)))
        return [*rows, 0]


AutoConfig.register(OpenPanguVLConfig.model_type, OpenPanguVLConfig)


def processor(folder: Path) -> OpenPanguVLProcessor:
    extra = [KNOWN.image_token, KNOWN.video_token, KNOWN.vision_start_token, KNOWN.vision_end_token]
    write_tokenizer(folder, extra)
    remote.put("pangu_vl_config", folder)
    remote.copied("pangu_vl_processor", "OpenPanguVLProcessor", folder)
    made: OpenPanguVLProcessor = OpenPanguVLProcessor.from_pretrained(folder)
    return made


def published(config: dict[str, Any]) -> dict[str, Any]:
    """With the class that comes with the checkpoint."""
    return {**config, "auto_map": {"AutoConfig": "pangu_vl_config.OpenPanguVLConfig"}}
