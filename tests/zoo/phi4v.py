"""Phi-4 vision: SigLIP 2's patches and a projector before Phi-3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, Phi3ForCausalLM, Siglip2VisionConfig, Siglip2VisionModel

from tests.zoo import remote
from tests.zoo.remote.phi4v_config import Phi4VConfig
from tests.zoo.remote.phi4v_processor import IMAGE_TOKEN, MARK, Phi4VProcessor
from tests.zoo.tokens import write_tokenizer

NAMES = ((r"(vision_tower\.vision_tower\.)", r"\1vision_model."),)


class Phi4ForCausalLMV(Phi3ForCausalLM):
    config_class = Phi4VConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        eyes = Siglip2VisionModel._from_config(Siglip2VisionConfig(**config.vision_config))
        size, hidden = config.mm_hidden_size, config.hidden_size
        self.model.vision_tower = torch.nn.ModuleDict({"vision_tower": eyes})
        self.model.mm_projector = torch.nn.Sequential(
            torch.nn.Linear(size, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, hidden)
        )

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        pixel_attention_mask: torch.Tensor | None = None,
        spatial_shapes: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        """As the processor makes them; ``input_ids`` [1, n]."""
        states = self.model.embed_tokens(input_ids)
        if pixel_values is not None and pixel_attention_mask is not None:
            made = self.model.vision_tower["vision_tower"](
                pixel_values, pixel_attention_mask, spatial_shapes, output_hidden_states=True
            )
            patches = made.hidden_states[-2][pixel_attention_mask.bool()]
            where = (input_ids[0] == IMAGE_TOKEN).nonzero()[: len(patches), 0]
            states = states.index_copy(1, where, self.model.mm_projector(patches)[None])
        return super().forward(inputs_embeds=states, use_cache=False)


AutoConfig.register(Phi4VConfig.model_type, Phi4VConfig)


def processor(folder: Path) -> Any:
    write_tokenizer(folder, [MARK])
    remote.put("phi4v_config", folder)
    remote.copied("phi4v_processor", "Phi4VProcessor", folder)
    return Phi4VProcessor.from_pretrained(folder)


def published(config: dict[str, Any]) -> dict[str, Any]:
    """With the class that comes with the checkpoint."""
    return {**config, "auto_map": {"AutoConfig": "phi4v_config.Phi4VConfig"}}
