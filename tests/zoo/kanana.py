"""Kanana-V: Qwen2-VL's encoder and an abstractor of convolutions before Llama."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import interpolate, pixel_unshuffle
from transformers import AutoConfig, LlamaForCausalLM, PreTrainedModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

from tests.zoo import remote
from tests.zoo.remote.kanana_config import KananaVConfig
from tests.zoo.remote.kanana_processor import MARK, MEDIUM, KananaVProcessor
from tests.zoo.tokens import SPECIAL, write_tokenizer


class KananaVForConditionalGeneration(PreTrainedModel):
    config_class = KananaVConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vision_model = Qwen2VisionTransformerPretrainedModel._from_config(config.vision_config)
        self.vision_model.merger = torch.nn.Identity()
        self.abstractor = Abstractor(config.projector_config)
        self.language_model = LlamaForCausalLM._from_config(config.text_config)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        vision_grid_thw: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        """As the processor makes them; ``input_ids`` [1, n]."""
        states = self.language_model.get_input_embeddings()(input_ids)
        if pixel_values is not None and vision_grid_thw is not None:
            made = self.vision_model(pixel_values, vision_grid_thw).last_hidden_state
            parts = made.split(vision_grid_thw.prod(-1).tolist())
            seen = torch.cat(
                [
                    self.abstractor(part.unflatten(0, (lines, columns)))
                    for part, (_, lines, columns) in zip(
                        parts, vision_grid_thw.tolist(), strict=True
                    )
                ]
            )
            where = (input_ids[0] == SPECIAL.index(MEDIUM)).nonzero()[: len(seen), 0]
            states = states.index_copy(1, where, seen[None])
        return self.language_model(inputs_embeds=states, use_cache=False)


class Abstractor(torch.nn.Module):
    """Makes one token of ``merge_size`` by as many patches, after others and before others have
    seen what is beside them."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        from timm.layers import LayerNorm2d
        from timm.models.regnet import RegStage

        stage = partial(
            RegStage, stride=1, dilation=1, act_layer=torch.nn.SiLU, norm_layer=LayerNorm2d
        )
        size, self.merged = config.hidden_size, config.merge_size
        places = (1, config.pos_emb_size, config.encoder_hidden_size)
        self.pos_emb = torch.nn.Parameter(torch.zeros(places))
        self.net = torch.nn.ModuleDict(
            {
                "0": stage(config.depth, config.encoder_hidden_size, size),
                "2": stage(config.depth, self.merged**2 * size, size),
            }
        )
        sizes = [size, *[config.output_hidden_size] * config.mlp_depth]
        layers: list[torch.nn.Module] = []
        for wide, wider in itertools.pairwise(sizes):
            layers += [torch.nn.SiLU(), torch.nn.Linear(wide, wider)]
        self.readout = torch.nn.Sequential(*layers[1:])

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """``patches`` [lines, columns, size]; [tokens, hidden]."""
        side = int(self.pos_emb.shape[1] ** 0.5)
        table = self.pos_emb.float().unflatten(1, (side, side)).permute(0, 3, 1, 2)
        sizes = [*patches.shape[:2]]
        places = interpolate(table, sizes, mode="bicubic", antialias=True).to(patches.dtype)
        states = self.net["0"](patches.permute(2, 0, 1)[None] + places)
        states = self.net["2"](pixel_unshuffle(states, self.merged))
        return self.readout(states[0].flatten(1).T)


AutoConfig.register(KananaVConfig.model_type, KananaVConfig)


def processor(folder: Path) -> Any:
    write_tokenizer(folder, [MARK])
    remote.put("kanana_config", folder)
    remote.copied("kanana_processor", "KananaVProcessor", folder)
    return KananaVProcessor.from_pretrained(folder)


def published(config: dict[str, Any]) -> dict[str, Any]:
    """With the class that comes with the checkpoint."""
    return {**config, "auto_map": {"AutoConfig": "kanana_config.KananaVConfig"}}
