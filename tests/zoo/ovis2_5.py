"""Ovis 2.5 and 2.6: patches that turn by row and column, as shares of visual words, before Qwen 3,
in plain torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import interpolate, scaled_dot_product_attention
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.siglip.modeling_siglip import SiglipEncoderLayer

from tests.zoo import remote
from tests.zoo.processors import _image_processor
from tests.zoo.remote.ovis2_5_config import Ovis2_5Config
from tests.zoo.tokens import write_tokenizer

IMAGE, VIDEO = "<image>", "<video>"
PAD, WORDS = 151655, 151669  # of Qwen 3's tokenizer, whose numbers the host knows
MARKS = 4  # the last visual words: an image's begin and end, a video's
LEAST, MOST = 448**2, 1792**2  # pixels of an image
MERGED = 2  # patches along a side that are one token


class Ovis2_5(PreTrainedModel):  # noqa: N801 (the host's name)
    config_class = Ovis2_5Config

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.llm = AutoModelForCausalLM.from_config(config.llm_config)
        words = config.visual_vocab_size - MARKS
        wide = config.vit_config.hidden_size * MERGED**2
        self.visual_tokenizer = torch.nn.ModuleDict(
            {
                "vit": torch.nn.ModuleDict({"vision_model": Tower(config.vit_config)}),
                "head": torch.nn.Sequential(
                    torch.nn.Linear(wide, words, bias=False), torch.nn.LayerNorm(words)
                ),
            }
        )
        self.vte = torch.nn.Embedding(config.visual_vocab_size, config.hidden_size)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        grids: torch.Tensor | None = None,
        are_videos: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        """``input_ids`` [1, n]; pixel_values [patches, numbers] of all media, grids [media, 3]
        their frames, rows and columns."""
        states = self.llm.get_input_embeddings()(input_ids)
        if pixel_values is not None and grids is not None and are_videos is not None:
            parts = pixel_values.split(grids.prod(-1).tolist())
            seen = torch.cat(
                [
                    self._see(part, *grid, is_video)
                    for part, grid, is_video in zip(
                        parts, grids.tolist(), are_videos.tolist(), strict=True
                    )
                ]
            )
            where = (input_ids[0] == PAD).nonzero()[: len(seen), 0]
            states = states.index_copy(1, where, seen[None])
        return self.llm(inputs_embeds=states, use_cache=False)

    def _see(
        self, patches: torch.Tensor, frames: int, rows: int, columns: int, is_video: bool
    ) -> torch.Tensor:
        """Of one medium, between its marks [2 + tokens, hidden]."""
        tokenizer = self.visual_tokenizer
        states = tokenizer["vit"]["vision_model"](patches, frames, rows, columns)
        logits = tokenizer["head"](states.reshape(-1, tokenizer["head"][0].in_features))
        shares = logits.softmax(-1, dtype=torch.float32).to(logits.dtype)
        begin, end = self.vte.weight[-MARKS:].view(2, 2, 1, -1)[int(is_video)]
        return torch.cat([begin, shares @ self.vte.weight[:-MARKS], end])


class Tower(torch.nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        size, side = config.hidden_size, config.patch_size
        self.side = config.image_size // side  # of the table of places
        self.embeddings = torch.nn.ModuleDict(
            {
                "patch_embedding": torch.nn.Conv2d(3, size, side, side),
                "position_embedding": torch.nn.Embedding(self.side**2, size),
            }
        )
        self.encoder = torch.nn.ModuleDict(
            {"layers": torch.nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))}
        )
        self.post_layernorm = torch.nn.LayerNorm(size)  # which nobody asks
        self.quarter = size // config.num_attention_heads // 4  # of a head

    def forward(self, patches: torch.Tensor, frames: int, rows: int, columns: int) -> torch.Tensor:
        """``patches`` [frames * rows * columns, numbers], those of a token one after the other;
        states [patches, size]."""
        convolution = self.embeddings["patch_embedding"]
        states = convolution(patches.view(-1, 3, *convolution.kernel_size)).flatten(1)
        states = states.unflatten(0, (frames, -1)) + self._places(rows, columns)
        turns = self._turns(rows, columns)
        for layer in self.encoder["layers"]:
            states = layer(states, turns)
        return states.flatten(0, 1)

    def _places(self, rows: int, columns: int) -> torch.Tensor:
        """[patches of a frame, size]: the table, stretched."""
        table = self.embeddings["position_embedding"].weight.T.unflatten(1, (self.side, -1))
        stretched = interpolate(table[None], (rows, columns), mode="bicubic")[0]
        return _by_token(stretched.permute(1, 2, 0))

    def _turns(self, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [1, patches of a frame, head], by row in the first quarter of channels
        and the third, by column in the others."""
        grid = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
        places = _by_token(grid.view(rows, columns, 2))
        frequencies = 10000.0 ** -(torch.arange(self.quarter) / self.quarter)
        angles = (places[:, :, None] * frequencies).flatten(1).repeat(1, 2)[None]
        return angles.cos(), angles.sin()


class Layer(SiglipEncoderLayer):
    def forward(
        self, states: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """``states`` [frames, patches, size], each frame by itself; the same."""
        ours = self.self_attn
        x = self.layer_norm1(states)
        query, key, value = (
            projection(x).unflatten(-1, (ours.num_heads, -1)).transpose(1, 2)
            for projection in (ours.q_proj, ours.k_proj, ours.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *(part.to(x.dtype) for part in turns))
        attended = scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        states = states + ours.out_proj(attended)
        return states + self.mlp(self.layer_norm2(states))


AutoConfig.register(Ovis2_5Config.model_type, Ovis2_5Config)


def _by_token(grid: torch.Tensor) -> torch.Tensor:
    """``grid`` [rows, columns, size]; [patches, size], those of a token one after the other."""
    blocks = grid.unflatten(1, (-1, MERGED)).unflatten(0, (-1, MERGED))
    return blocks.transpose(1, 2).flatten(0, 3)


@dataclass(frozen=True)
class Processor:
    """What the model above takes of a text with media."""

    images: Any
    tokenizer: Any
    side: int  # of a patch

    def __call__(
        self, text: str, images: Any = (), videos: Any = (), **_: Any
    ) -> dict[str, torch.Tensor]:
        from PIL import Image

        given = {
            IMAGE: iter([image] for image in images),
            VIDEO: iter([Image.fromarray(frame) for frame in video] for video in videos),
        }
        ids: list[int] = []
        patches, grids, kinds = [], [], []
        for part in re.split(f"({IMAGE}|{VIDEO})", text):
            if part not in given:
                ids += self.tokenizer(part, add_special_tokens=False).input_ids
                continue
            frames = [self._pixels(frame) for frame in next(given[part])]
            rows, columns = (length // self.side for length in frames[0].shape[1:])
            patches += map(self._patches, frames)
            grids.append([len(frames), rows, columns])
            kinds.append(part == VIDEO)
            ids += [PAD] * (len(frames) * rows * columns // MERGED**2 + 2)
        inputs = {"input_ids": torch.tensor([ids])}
        if grids:
            inputs["pixel_values"] = torch.cat(patches)
            inputs["grids"] = torch.tensor(grids)
            inputs["are_videos"] = torch.tensor(kinds)
        return inputs

    def _pixels(self, image: Any) -> torch.Tensor:
        """[3, height, width], as many tokens as fill it nearly."""
        factor = self.side * MERGED
        height, width = smart_resize(image.height, image.width, factor, LEAST, MOST)
        size = {"height": height, "width": width}
        return self.images(image, size=size, return_tensors="pt").pixel_values[0]

    def _patches(self, image: torch.Tensor) -> torch.Tensor:
        grid = image.unflatten(2, (-1, self.side)).unflatten(1, (-1, self.side))
        return _by_token(grid.permute(1, 3, 0, 2, 4).flatten(2))


def processor(folder: Path) -> Processor:
    tokenizer = _tokenizer(folder)
    images = _image_processor("Siglip")
    images.save_pretrained(folder)
    remote.put("ovis2_5_config", folder)
    return Processor(images, tokenizer, 16)


def _tokenizer(folder: Path) -> Any:
    """As many words as Qwen 3 has; the host adds its own behind them."""
    pad = "<|image_pad|>"
    write_tokenizer(folder, [pad])
    path = folder / "tokenizer.json"
    whole = json.loads(path.read_text())
    vocabulary = {**whole["model"]["vocab"], pad: PAD}
    whole["model"]["vocab"] = vocabulary | _fillers(vocabulary.values())
    for token in whole["added_tokens"]:
        token["id"] = vocabulary[token["content"]]
    path.write_text(json.dumps(whole))
    return AutoTokenizer.from_pretrained(folder)


def _fillers(taken: Iterable[int]) -> dict[str, int]:
    """Words that no text has, for all other numbers."""
    return {f"<|{number}|>": number for number in set(range(WORDS)) - set(taken)}


def published(config: dict[str, Any]) -> dict[str, Any]:
    """With the class that comes with the checkpoint."""
    return {**config, "auto_map": {"AutoConfig": "ovis2_5_config.Ovis2_5Config"}}
