"""LLaVA-OneVision 2: patches that turn by time, line and column before Qwen 3, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import gelu, scaled_dot_product_attention
from transformers import AutoConfig, PreTrainedModel, Qwen3Model
from transformers.modeling_outputs import CausalLMOutput

from tests.zoo import remote
from tests.zoo.processors import four_to
from tests.zoo.remote.llava_onevision2_config import LlavaOnevision2Config
from tests.zoo.remote.processing_llava_onevision2 import MARK, LlavaOnevision2Processor
from tests.zoo.tokens import write_tokenizer

IMAGE = f"<|vision_start|>{MARK}<|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
SHARES = (4, 6, 6)  # sixteenths of a head's channels that turn by time, line and column


class LlavaOnevision2ForConditionalGeneration(PreTrainedModel):
    config_class = LlavaOnevision2Config

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        text = config.text_config
        self.model = torch.nn.ModuleDict(
            {
                "visual": Tower(config.vision_config, text.hidden_size),
                "language_model": Qwen3Model._from_config(text),
            }
        )
        self.lm_head = torch.nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
        patch_positions: torch.Tensor | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        """As the processor makes them; ``input_ids`` [1, n]."""
        text = self.model["language_model"]
        states = text.embed_tokens(input_ids)
        if pixel_values is not None and patch_positions is not None and image_grid_thw is not None:
            counts = image_grid_thw.prod(-1).tolist()
            images = zip(pixel_values.split(counts), patch_positions.split(counts), strict=True)
            seen = torch.cat([self.model["visual"](*image) for image in images])
            where = (input_ids[0] == self.config.image_token_id).nonzero()[: len(seen), 0]
            states = states.index_copy(1, where, seen[None])
        made = text(inputs_embeds=states, use_cache=False).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(made))


class Tower(torch.nn.Module):
    def __init__(self, config: Any, hidden: int) -> None:
        super().__init__()
        size, side, eps = config.hidden_size, config.patch_size, config.layer_norm_eps
        self.half, self.theta = size // config.num_attention_heads // 2, config.rope_theta
        self.embeddings = torch.nn.ModuleDict(
            {"patch_embedding": torch.nn.Conv2d(3, size, side, side, bias=False)}
        )
        self.layernorm_pre = torch.nn.LayerNorm(size, eps)
        layers = torch.nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.encoder = torch.nn.ModuleDict({"layers": layers})
        wide = size * config.spatial_merge_size**2
        mlp = (torch.nn.Linear(wide, wide), torch.nn.GELU(), torch.nn.Linear(wide, hidden))
        self.merger = torch.nn.ModuleDict(
            {"ln_q": torch.nn.LayerNorm(size, eps), "mlp": torch.nn.Sequential(*mlp)}
        )

    def forward(self, patches: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """``patches`` [n, numbers], places [n, 3]; [tokens, hidden]."""
        convolution = self.embeddings["patch_embedding"]
        pixels = patches.unflatten(1, (3, *convolution.kernel_size))
        states = self.layernorm_pre(convolution(pixels).flatten(1))
        turns = self._turns(places)
        for layer in self.encoder["layers"]:
            states = layer(states, turns)
        normed = self.merger["ln_q"](states)
        tokens: torch.Tensor = self.merger["mlp"](normed.view(-1, 4 * normed.shape[1]))
        return tokens

    def _turns(self, places: torch.Tensor) -> torch.Tensor:
        """Angles [n, 2 * half] of all channels, the second half's like the first's."""
        angles = []
        for along, share in zip(places.T, SHARES, strict=True):
            count = share * self.half // 16
            frequencies = self.theta ** -(torch.arange(count) / count)
            angles.append(along[:, None] * frequencies)
        return torch.cat(angles, 1).repeat(1, 2)


class Layer(torch.nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        size, wide, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.heads = config.num_attention_heads
        self.layer_norm1, self.layer_norm2 = (torch.nn.LayerNorm(size, eps) for _ in range(2))
        self.self_attn = torch.nn.ModuleDict(
            {"qkv": torch.nn.Linear(size, 3 * size), "proj": torch.nn.Linear(size, size)}
        )
        self.mlp = torch.nn.ModuleDict(
            {"fc1": torch.nn.Linear(size, wide), "fc2": torch.nn.Linear(wide, size)}
        )

    def forward(self, states: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        """``states`` [n, size], turns [n, channels of a head]; the same."""
        heads = self.self_attn["qkv"](self.layer_norm1(states)).unflatten(-1, (3, self.heads, -1))
        query, key, value = heads.permute(1, 2, 0, 3)
        query, key = (_turned(x, turns) for x in (query, key))
        attended = scaled_dot_product_attention(query, key, value).transpose(0, 1).flatten(1)
        states = states + self.self_attn["proj"](attended)
        return states + self.mlp["fc2"](gelu(self.mlp["fc1"](self.layer_norm2(states))))


def _turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """``x`` [heads, n, channels].  Channels beside each other are a pair, but either has an angle
    of its own."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    crossed = torch.stack([-odd, even], -1).flatten(-2)
    return (x.float() * turns.cos() + crossed * turns.sin()).to(x.dtype)


AutoConfig.register(LlavaOnevision2Config.model_type, LlavaOnevision2Config)


@dataclass(frozen=True)
class Processor:
    """A video is an even number of images, each behind its time.  It comes after images."""

    processor: Any

    def __call__(
        self, text: str, images: Any = (), videos: Any = (), video_metadata: Any = (), **_: Any
    ) -> dict[str, Any]:
        from PIL import Image

        pictures = [*images]
        for video, said in zip(videos, video_metadata, strict=True):
            frames = list(zip(video, said["frames_indices"], strict=True))
            frames += frames[-1:] * (len(frames) % 2)
            pictures += [Image.fromarray(frame) for frame, _ in frames]
            times = [f"<{number / said['fps']:.1f} seconds>" for _, number in frames]
            text = text.replace(VIDEO, "".join(time + IMAGE for time in times), 1)
        return dict(self.processor(text, pictures))


def processor(folder: Path) -> Processor:
    from transformers import Qwen2VLImageProcessor

    extra = (MARK, "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    tokenizer = write_tokenizer(folder, extra)
    images = Qwen2VLImageProcessor(temporal_patch_size=1, size=four_to(16, 14))
    images.save_pretrained(folder)
    for part in ("processing", "video_processing"):
        remote.put(f"{part}_llava_onevision2", folder)
    remote.put("llava_onevision2_config", folder)
    return Processor(LlavaOnevision2Processor(images, tokenizer))


def published(config: dict[str, Any]) -> dict[str, Any]:
    """With the class that comes with the checkpoint."""
    made = "llava_onevision2_config.LlavaOnevision2Config"
    return {**config, "auto_map": {"AutoConfig": made}}
