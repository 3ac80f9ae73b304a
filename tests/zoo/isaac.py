"""Isaac: SigLIP 2's patches, four of which are a token, before Qwen 3, whose positions are of time,
line and column."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import (
    AutoConfig,
    PreTrainedModel,
    Qwen3Model,
    Siglip2VisionConfig,
    Siglip2VisionModel,
)
from transformers.modeling_outputs import CausalLMOutput

from tests.zoo.keye import Turns
from tests.zoo.remote.isaac_config import IsaacConfig
from tests.zoo.tokens import write_tokenizer

MARK, PAD = "<image>", "<|image_pad|>"


class IsaacForConditionalGeneration(PreTrainedModel):
    config_class = IsaacConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        eyes = Siglip2VisionConfig(**{**config.vision_config, "vision_use_head": False})
        self.merged = config.pixel_shuffle_scale
        size = eyes.hidden_size * self.merged**2
        self.model = Qwen3Model._from_config(config)
        self.model.vision_embedding = torch.nn.Sequential(
            Siglip2VisionModel._from_config(eyes),
            torch.nn.Linear(size, 4 * size, bias=False),
            torch.nn.SiLU(),
            torch.nn.Linear(4 * size, config.hidden_size, bias=False),
        )
        half = config.head_dim // 2
        self.model.rotary_emb = Chunks(config, [half // 2, half // 4, half // 4])
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        """As the processor makes them; ``input_ids`` [1, n]."""
        states = self.model.embed_tokens(input_ids)
        sizes: list[tuple[int, int]] = []
        if pixel_values is not None and image_grid_thw is not None:
            sizes = [(lines, columns) for _, lines, columns in image_grid_thw.tolist()]
            patches = pixel_values.split([lines * columns for lines, columns in sizes])
            seen = torch.cat(list(map(self._see, patches, sizes)))
            where = (input_ids[0] == self.config.image_token_id).nonzero()[: len(seen), 0]
            states = states.index_copy(1, where, seen[None])
        self.model.rotary_emb.places = self._places(input_ids[0].tolist(), sizes)
        made = self.model(inputs_embeds=states, use_cache=False).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(made))

    def _see(self, patches: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """Tokens [tokens, hidden] of an image's ``patches`` [lines * columns, numbers]."""
        eyes, *project = self.model.vision_embedding
        mask = torch.ones(1, len(patches), dtype=torch.long)
        states = eyes(patches[None], mask, torch.tensor([size])).last_hidden_state[0]
        lines, columns = (side // self.merged for side in size)
        blocks = states.unflatten(0, (lines, self.merged, columns, self.merged))
        tokens = blocks.transpose(1, 2).flatten(2).flatten(0, 1)
        for layer in project:
            tokens = layer(tokens)
        return tokens

    def _places(self, ids: list[int], sizes: list[tuple[int, int]]) -> torch.Tensor:
        """Times, lines and columns [3, n]: an image is at one time, its lines and columns are
        counted from 0, and a text's token has its time in all of them."""
        places: list[torch.Tensor] = []
        number, time, left = 0, 0, iter(sizes)
        while number < len(ids):
            size = next(left, None) if ids[number] == self.config.image_token_id else None
            if size is None:
                block = torch.full((3, 1), time)
            else:
                spread = map(torch.arange, (1, *(side // self.merged for side in size)))
                block = torch.cartesian_prod(*spread).T + torch.tensor([[time], [0], [0]])
            places.append(block)
            number += block.shape[1]
            time += 1
        return torch.cat(places, 1)


class Chunks(Turns):
    """Of a config that does not say its sections."""

    def __init__(self, config: Any, sections: list[int]) -> None:
        rope = {**config.rope_parameters, "mrope_section": sections}
        super().__init__(SimpleNamespace(head_dim=config.head_dim, rope_parameters=rope))


AutoConfig.register(IsaacConfig.model_type, IsaacConfig)


def processor(folder: Path) -> Any:
    """The host's, as there is no other."""
    from vllm.transformers_utils.processors.isaac import IsaacImageProcessor, IsaacProcessor

    tokenizer = write_tokenizer(folder, [PAD, MARK])
    return IsaacProcessor(IsaacImageProcessor(), tokenizer, image_token=MARK)
