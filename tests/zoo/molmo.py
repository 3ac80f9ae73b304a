"""Molmo and Molmo 2: an encoder whose patches are pooled by attention before Qwen's texts, in plain
torch."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import embedding, scaled_dot_product_attention
from transformers import AutoConfig, PreTrainedModel, Qwen2Model, Qwen3Model
from transformers.activations import ACT2FN

from tests.zoo import remote
from tests.zoo.remote.molmo_config import Molmo2Config, Molmo2TextConfig, MolmoConfig
from tests.zoo.remote.molmo_processor import (
    BEGIN,
    IMAGE,
    PATCH,
    PATCHES,
    POOLED,
    SIDE,
    VIDEO,
    Molmo2Processor,
    MolmoProcessor,
)
from tests.zoo.tokens import write_tokenizer

WORDS = 260  # as many tokens as the tokenizer of bytes has; those of images come behind them
NEW = 128  # more that have an embedding, and no logit
TOKENS = ("<im_patch>", "<im_col>", "<im_start>", "<im_end>", "<low_res_im_start>", "<im_low>")
TOKENS += ("<frame_start>", "<frame_end>", IMAGE, VIDEO)
NUMBERS = {
    name: WORDS + TOKENS.index(token)
    for name, token in (
        ("image_patch_id", "<im_patch>"),
        ("image_col_id", "<im_col>"),
        ("image_start_token_id", "<im_start>"),
        ("image_end_token_id", "<im_end>"),
        ("low_res_image_start_token_id", "<low_res_im_start>"),
        ("image_low_res_id", "<im_low>"),
        ("frame_start_token_id", "<frame_start>"),
        ("frame_end_token_id", "<frame_end>"),
    )
}
BLOCK = (
    (r"\.layers\.(?=\d+\.(self_attn|mlp|input_|post_))", ".blocks."),
    (r"self_attn\.([qkv])_proj", r"self_attn.att_proj|\1"),
    (r"\|q", "|0"),
    (r"\|k", "|1"),
    (r"\|v", "|2"),
    (r"self_attn\.o_proj", "self_attn.attn_out"),
    (r"mlp\.up_proj", "mlp.ff_proj|0"),  # before the gate
    (r"mlp\.gate_proj", "mlp.ff_proj|1"),
    (r"mlp\.down_proj", "mlp.ff_out"),
    (r"input_layernorm", "attn_norm"),
    (r"post_attention_layernorm", "ff_norm"),
    (r"transformer\.norm", "transformer.ln_f"),
    (r"embed_tokens\.((new_)?embedding)\.weight", r"wte.\1"),
)
NAMES2 = BLOCK
NAMES = (
    *BLOCK,
    (r"(blocks\.\d+\.)(self_attn|mlp)\.", r"\1"),
    (r"lm_head", "model.transformer.ff_out"),
)
# Those of the encoder, which the host does not read from a config.
VISION = {
    "image_emb_dim": 64,
    "image_num_heads": 2,
    "image_num_key_value_heads": 2,
    "image_num_layers": 9,  # of which the first and the last but one are read
    "image_mlp_dim": 112,
    "image_num_pos": 1 + PATCHES**2,
    "image_default_input_size": (SIDE, SIDE),
}


class Attention(torch.nn.Module):
    def __init__(self, wide: int, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv = (torch.nn.Linear(wide, size) for _ in range(3))
        self.wo = torch.nn.Linear(size, size)

    def forward(
        self, queries: torch.Tensor, others: torch.Tensor, seen: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``queries`` [batch, n, wide], others [batch, m, wide], seen [batch, 1, 1, m]."""
        query, key, value = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project, x in ((self.wq, queries), (self.wk, others), (self.wv, others))
        )
        attended = scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return self.wo(attended.transpose(1, 2).flatten(2))


class Block(torch.nn.Module):
    def __init__(self, size: int, wide: int, heads: int, act: str, eps: float) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = (torch.nn.LayerNorm(size, eps) for _ in range(2))
        self.attention = Attention(size, size, heads)
        self.feed_forward = torch.nn.ModuleDict(
            {"w1": torch.nn.Linear(size, wide), "w2": torch.nn.Linear(wide, size)}
        )
        self.act = ACT2FN[act]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        x = self.attention_norm(states)
        states = states + self.attention(x, x)
        x = self.act(self.feed_forward["w1"](self.ffn_norm(states)))
        return states + self.feed_forward["w2"](x)


class Encoder(torch.nn.Module):
    """What ``read`` of its layers make of patches, beside each other."""

    def __init__(self, size: int, blocks: Iterable[Block], read: Iterable[int]) -> None:
        super().__init__()
        self.read = tuple(read)
        self.positional_embedding = torch.nn.Parameter(torch.zeros(PATCHES**2, size))
        self.patch_embedding = torch.nn.Linear(3 * PATCH**2, size)
        self.transformer = torch.nn.ModuleDict({"resblocks": torch.nn.ModuleList(blocks)})

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """``pixels`` [views, patches, numbers]; [views, patches, wide]."""
        return self._through(self.patch_embedding(pixels) + self.positional_embedding)

    def _through(self, states: torch.Tensor) -> torch.Tensor:
        made = [states := block(states) for block in self.transformer["resblocks"]]
        return torch.cat([made[layer] for layer in self.read], -1)


class ClipEncoder(Encoder):
    """With a class, which nobody reads, and a norm of what is embedded."""

    def __init__(self, size: int, blocks: Iterable[Block], read: Iterable[int]) -> None:
        super().__init__(size, blocks, read)
        self.class_embedding = torch.nn.Parameter(torch.zeros(size))
        self.positional_embedding = torch.nn.Parameter(torch.zeros(1 + PATCHES**2, size))
        self.patch_embedding = torch.nn.Linear(3 * PATCH**2, size, bias=False)
        self.pre_ln = torch.nn.LayerNorm(size)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        begin = self.class_embedding.expand(len(pixels), 1, -1)
        states = torch.cat([begin, self.patch_embedding(pixels)], 1) + self.positional_embedding
        return self._through(self.pre_ln(states))[:, 1:]


class Projector(torch.nn.Module):
    def __init__(self, size: int, wide: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w3 = (torch.nn.Linear(size, wide, bias=False) for _ in range(2))
        self.w2 = torch.nn.Linear(wide, hidden, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.w2(torch.nn.functional.silu(self.w1(states)) * self.w3(states))


class Backbone(torch.nn.Module):
    def __init__(self, encoder: Encoder, pooling: Attention, projector: Projector) -> None:
        super().__init__()
        self.image_vit, self.image_pooling_2d = encoder, pooling
        self.image_projector = projector

    def forward(self, pixels: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """``pixels`` [views, patches, numbers]; tokens [n, patches of a token] by number, -1 where
        there is none; [n, hidden]."""
        patches = self.image_vit(pixels).flatten(0, 1)
        there = tokens >= 0
        pooled = patches[tokens.clamp(0)] * there[..., None]
        mean = pooled.sum(1, keepdim=True) / there.sum(-1)[:, None, None]
        seen = self.image_pooling_2d(mean, pooled, there[:, None, None])
        return self.image_projector(seen[:, 0])


class PaddedBackbone(Backbone):
    """Of crops that borders fill up."""

    def __init__(self, encoder: Encoder, pooling: Attention, projector: Projector) -> None:
        super().__init__(encoder, pooling, projector)
        self.pad_embed = torch.nn.Parameter(torch.zeros(2, pooling.wq.in_features))

    def see(self, pixels: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        """``pixels`` [views, patches, numbers], share [views, patches] of them that is no border;
        [views, tokens, hidden]."""
        patches = self.image_vit(pixels)
        for kind, filled in enumerate((share == 0, (share > 0) & (share < 1))):
            patches = patches + self.pad_embed[kind] * filled[..., None]
        grid = patches.unflatten(1, (PATCHES // POOLED, POOLED, PATCHES // POOLED, POOLED))
        blocks = grid.transpose(2, 3).flatten(3, 4).flatten(0, 2)
        seen = self.image_pooling_2d(blocks.mean(1, keepdim=True), blocks)
        return self.image_projector(seen[:, 0]).unflatten(0, (len(pixels), -1))


class Molmo(PreTrainedModel):
    """What both have around their text model, whose table of embeddings has two parts."""

    text = Qwen2Model

    def _init(self, config: Any, backbone: Backbone) -> None:
        text = self.text(config)
        size = config.hidden_size
        text.embed_tokens = torch.nn.ModuleDict(
            {
                "embedding": torch.nn.Embedding(config.vocab_size, size),
                "new_embedding": torch.nn.Embedding(NEW, size),
            }
        )
        self.model = torch.nn.ModuleDict({"transformer": text, "vision_backbone": backbone})
        self.lm_head = torch.nn.Linear(size, config.vocab_size, bias=False)
        self.post_init()

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        tables = self.model["transformer"].embed_tokens
        return embedding(
            ids, torch.cat([tables["embedding"].weight, tables["new_embedding"].weight])
        )

    def _logits(self, states: torch.Tensor, seen: torch.Tensor) -> Any:
        """``states`` [1, n, hidden], seen [n, n]."""
        mask = torch.zeros_like(seen, dtype=states.dtype)
        mask = mask.masked_fill(~seen, torch.finfo(states.dtype).min)[None, None]
        x = self.model["transformer"](
            inputs_embeds=states, attention_mask={"full_attention": mask}, use_cache=False
        ).last_hidden_state
        return Logits(self.lm_head(x))


@dataclass(frozen=True)
class Logits:
    logits: torch.Tensor


class MolmoForCausalLM(Molmo):
    config_class = MolmoConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        size, wide = VISION["image_emb_dim"], config.intermediate_size // 2
        shape = (size, VISION["image_mlp_dim"], VISION["image_num_heads"], "quick_gelu", 1e-5)
        blocks = [Block(*shape) for _ in range(VISION["image_num_layers"])]
        backbone = PaddedBackbone(
            ClipEncoder(size, blocks, (-2, -9)),
            Attention(2 * size, size, VISION["image_num_heads"]),
            Projector(size, wide, config.hidden_size),
        )
        text = copy.deepcopy(config)
        text.intermediate_size = wide
        self._init(text, backbone)

    def forward(
        self,
        input_ids: torch.Tensor,
        images: torch.Tensor | None = None,
        image_masks: torch.Tensor | None = None,
        image_input_idx: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        """As the processor makes them; ``input_ids`` [1, n]."""
        states = self._embed(input_ids)
        if images is not None and image_input_idx is not None:
            seen = self.model["vision_backbone"].see(images, image_masks)
            there = image_input_idx >= 0
            states = states.index_add(1, image_input_idx[there], seen[there][None])
        count = input_ids.shape[1]
        return self._logits(states, torch.ones(count, count, dtype=torch.bool).tril())


class Molmo2ForConditionalGeneration(Molmo):
    config_class = Molmo2Config
    text = Qwen3Model

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        eyes, adapter = config.vit_config, config.adapter_config
        shape = (eyes.hidden_size, eyes.intermediate_size, eyes.num_attention_heads)
        blocks = [
            Block(*shape, eyes.hidden_act, eyes.layer_norm_eps)
            for _ in range(eyes.num_hidden_layers)
        ]
        wide = len(adapter.vit_layers) * eyes.hidden_size
        backbone = Backbone(
            Encoder(eyes.hidden_size, blocks, adapter.vit_layers),
            Attention(wide, adapter.hidden_size, adapter.num_attention_heads),
            Projector(adapter.hidden_size, adapter.intermediate_size, adapter.text_hidden_size),
        )
        self._init(config.text_config, backbone)

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        image_token_pooling: torch.Tensor | None = None,
        image_grids: torch.Tensor | None = None,
        image_num_crops: torch.Tensor | None = None,
        pixel_values_videos: torch.Tensor | None = None,
        video_token_pooling: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        """As the processor makes them; ``input_ids`` [1, n].  A video comes after images."""
        states = self._embed(input_ids)
        backbone, perceived = self.model["vision_backbone"], []
        if pixel_values is not None and image_grids is not None and image_num_crops is not None:
            tokens = image_grids.unflatten(1, (2, 2)).prod(-1).sum(-1).tolist()
            views = pixel_values.split(image_num_crops.tolist())
            pooled = image_token_pooling.split(tokens)
            perceived += [backbone(*image) for image in zip(views, pooled, strict=True)]
        if pixel_values_videos is not None:
            perceived.append(backbone(pixel_values_videos, video_token_pooling))
        if perceived:
            media = torch.cat(perceived)
            where = (input_ids[0] == self.config.image_patch_id).nonzero()[: len(media), 0]
            states = states.index_add(1, where, media[None])
        return self._logits(states, self._seen(input_ids[0]))

    def _seen(self, ids: torch.Tensor) -> torch.Tensor:
        """[n, n]: what comes before, and tokens of the same image."""
        seen = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
        of_image = (ids >= WORDS).tolist()
        for is_image, span in itertools.groupby(range(len(ids)), key=of_image.__getitem__):
            if is_image:
                begin, *_, end = span
                seen[begin : end + 1, begin : end + 1] = True
        return seen


for config in (MolmoConfig, Molmo2TextConfig, Molmo2Config):
    AutoConfig.register(config.model_type, config, exist_ok=True)  # newer releases have some


@dataclass(frozen=True)
class Processed:
    """Molmo's processor as the others are called, and as the host does: not about a text alone."""

    processor: Any

    def __call__(self, text: str, images: Any = None, **_: Any) -> dict[str, torch.Tensor]:
        if not images:
            return {"input_ids": self.processor.tokenizer(text, return_tensors="pt").input_ids}
        made = dict(self.processor.process(text, images))
        return {**made, "input_ids": made["input_ids"][None]}


def molmo(folder: Path) -> Any:
    from vllm.model_executor.models import molmo as host

    def small() -> Any:
        return host_config(**VISION)

    host_config, host.VisionBackboneConfig = host.VisionBackboneConfig, small
    return Processed(_processor(MolmoProcessor, (BEGIN,), folder))


def molmo2(folder: Path) -> Any:
    return _processor(Molmo2Processor, (), folder)


def _processor(kind: Any, extra: Iterable[str], folder: Path) -> Any:
    """Of a tokenizer that has the images' tokens behind its others."""
    tokenizer = write_tokenizer(folder, extra)
    tokenizer.add_special_tokens({"additional_special_tokens": [*extra, *TOKENS]})
    tokenizer.save_pretrained(folder)
    remote.put("molmo_config", folder)
    remote.copied("molmo_processor", kind.__name__, folder)
    return kind.from_pretrained(folder)


def published(config: dict[str, Any]) -> dict[str, Any]:
    """With the class that comes with the checkpoint."""
    made = "MolmoConfig" if config["model_type"] == "molmo" else "Molmo2Config"
    return {**config, "auto_map": {"AutoConfig": f"molmo_config.{made}"}}
