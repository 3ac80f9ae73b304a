"""Llama Nemotron Nano VL, its models that embed and rank, and Eagle 2.5: a tower, a projector of
two by two patches, and a text model, in plain torch between them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    PreTrainedModel,
    SiglipVisionModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from tests.zoo import remote
from tests.zoo.processors import FIRST, SIDE
from tests.zoo.remote.llama_nemotron_vl import (
    EagleConfig,
    LlamaNemotronVLConfig,
    LlamaNemotronVLEmbedConfig,
    Tower,
)
from tests.zoo.tokens import write_tokenizer

CODE = "llama_nemotron_vl"  # that comes with checkpoints
MARK, SEEN = "<image>", "<IMG_CONTEXT>"  # a chat model has the mark for an image's tokens, too
TILES = 4  # of an image at most, before the small picture of the whole
MERGED = 2  # patches along a side that are one token
TOKENS = 4  # of a tile


class Seeing(PreTrainedModel):
    """A text model whose tokens of an image have the states that a tower makes of it."""

    def _add_eyes(self, config: Any, wide: int) -> None:
        merged = config.vision_config.hidden_size * MERGED**2
        self.mlp1 = torch.nn.Sequential(
            torch.nn.LayerNorm(merged),
            torch.nn.Linear(merged, wide),
            torch.nn.GELU(),
            torch.nn.Linear(wide, config.llm_config.hidden_size),
        )

    def forward(
        self, input_ids: torch.Tensor, pixel_values: torch.Tensor | None = None, **_: Any
    ) -> Any:
        states = self._states(input_ids, pixel_values)
        return self.language_model(inputs_embeds=states, use_cache=False)

    def _states(self, ids: torch.Tensor, pixels: torch.Tensor | None) -> torch.Tensor:
        """``ids`` [1, n], ``pixels`` [tiles, 3, side, side]; [1, n, hidden]."""
        states = self.language_model.get_input_embeddings()(ids)
        if pixels is None:
            return states
        patches = self._patches(pixels)
        side = int(patches.shape[1] ** 0.5) // MERGED
        blocks = patches.unflatten(1, (side, MERGED, side, MERGED)).transpose(2, 3).flatten(3)
        tokens = self.mlp1(blocks).flatten(0, 2)
        where = (ids[0] == FIRST).nonzero()[: len(tokens), 0]
        return states.index_copy(1, where, tokens[None])


class LlamaNemotronVL(Seeing):
    config_class = LlamaNemotronVLConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vision_model = Tower(config.vision_config)
        self._add_eyes(config, config.projector_hidden_size)
        self.language_model = AutoModelForCausalLM.from_config(config.llm_config)
        self.post_init()

    def _patches(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.vision_model(pixels).features


class Eagle(Seeing):
    """SigLIP's tower before a text model of the class ``text``."""

    config_class = EagleConfig
    text = AutoModelForCausalLM

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vision_model = SiglipVisionModel._from_config(config.vision_config)
        self._add_eyes(config, config.llm_config.hidden_size)
        self.language_model = self.text.from_config(config.llm_config)
        self.post_init()

    def _patches(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.vision_model(pixels).last_hidden_state


class LlamaNemotronVLEmbed(Eagle):
    """Tokens see what comes after them, too."""

    config_class = LlamaNemotronVLEmbedConfig
    text = AutoModel


class LlamaNemotronVLForSequenceClassification(PreTrainedModel):
    """A text's scores, of the mean of its states."""

    config_class = LlamaNemotronVLEmbedConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = LlamaNemotronVLEmbed(config)
        text = config.llm_config
        self.score = torch.nn.Linear(text.hidden_size, text.num_labels, bias=False)
        self.post_init()

    def forward(self, **inputs: Any) -> Any:
        """[1, labels] by a head in fp32."""
        states = self.model(**inputs).last_hidden_state.float().mean(1)
        return SequenceClassifierOutput(logits=self.score.float()(states))


for config in (LlamaNemotronVLConfig, LlamaNemotronVLEmbedConfig, EagleConfig):
    AutoConfig.register(config.model_type, config)


@dataclass(frozen=True)
class Processor:
    tokenizer: Any
    seen: str  # what stands for one token of an image
    normalized: Callable[[torch.Tensor], torch.Tensor]
    name: str = ""  # of an image, by its number

    def __call__(self, text: str, images: Any = (), **_: Any) -> dict[str, Any]:
        """A text with as many marks as its images have tokens, and the pixels of their tiles."""
        tiles = [_tiles(image) for image in images]
        begin, *rest = re.split("<image(?:-[0-9])?>", text)
        words = [
            self.name.format(number) + "<img>" + self.seen * TOKENS * len(some) + "</img>"
            for number, some in enumerate(tiles, 1)
        ]
        text = begin + "".join(map("".join, zip(words, rest, strict=True)))
        made = dict(self.tokenizer(text, return_tensors="pt"))
        if tiles:
            made["pixel_values"] = self.normalized(torch.cat(tiles))
        return made


def _tiles(image: Any) -> torch.Tensor:
    """[tiles, 3, SIDE, SIDE], the last a small picture of the whole where there are several."""
    columns, rows = _grid(*image.size)
    whole = _pixels(image, columns * SIDE, rows * SIDE)
    grid = whole.unflatten(2, (columns, SIDE)).unflatten(1, (rows, SIDE))
    tiles = grid.permute(1, 3, 0, 2, 4).flatten(0, 1)
    return torch.cat([tiles, _pixels(image, SIDE, SIDE)[None]]) if len(tiles) > 1 else tiles


def _grid(width: int, height: int) -> tuple[int, int]:
    """Columns and rows of the image's shape, but rather of three fifths of its size or more."""
    sides = range(1, TILES + 1)
    grids = [(columns, rows) for columns in sides for rows in sides if columns * rows <= TILES]

    def fits(grid: tuple[int, int]) -> float:
        columns, rows = grid
        shape = (columns / rows) / (width / height)
        return min(columns * rows * SIDE**2 / (width * height), 0.6) * min(shape, 1 / shape)

    return max(sorted(grids, key=lambda grid: grid[0] * grid[1]), key=fits)


def _pixels(image: Any, width: int, height: int) -> torch.Tensor:
    """[3, height, width], of 0 to 1."""
    import numpy as np

    scaled = np.array(image.convert("RGB").resize((width, height)))
    return torch.from_numpy(scaled).permute(2, 0, 1).float() / 255


def processor(folder: Path) -> Processor:
    """The tower makes numbers around 0 of colours."""
    remote.put(CODE, folder)
    said = {
        "auto_map": {"AutoImageProcessor": f"{CODE}.Tiles"},
        "image_processor_type": "Tiles",
        "image_size": SIDE,
        "max_num_tiles": TILES,
        "use_thumbnail": True,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    tokenizer = write_tokenizer(folder, [MARK, "<img>", "</img>"])
    return Processor(tokenizer, MARK, lambda pixels: pixels)


def embed_processor(folder: Path, name: str = "") -> Processor:
    tokenizer = write_tokenizer(folder, [SEEN, "<img>", "</img>"])
    return Processor(tokenizer, SEEN, lambda pixels: pixels * 2 - 1, name)


def eagle_processor(folder: Path) -> Processor:
    remote.put(CODE, folder)
    return embed_processor(folder, "<image {}>")


def published(config: dict[str, Any]) -> dict[str, Any]:
    """With the class that comes with the checkpoint."""
    return _with_code("LlamaNemotronVLConfig", _with_text("LlamaForCausalLM", config))


def eagle_published(config: dict[str, Any]) -> dict[str, Any]:
    return _with_code("EagleConfig", _with_text("Qwen2ForCausalLM", config))


def _with_code(name: str, config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "auto_map": {"AutoConfig": f"{CODE}.{name}"}}


def embed_published(config: dict[str, Any]) -> dict[str, Any]:
    return _with_text("LlamaBidirectionalModel", config)


def _with_text(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """With the host's class of its text."""
    return {**config, "llm_config": {**config["llm_config"], "architectures": [name]}}
