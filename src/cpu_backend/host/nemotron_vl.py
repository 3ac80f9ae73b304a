"""Nemotron Nano VL and Omni see and hear in the model's own dtype.

What: what their towers make of images, videos and sounds stays in the dtype that it is computed in.
Why: the host rounds it to bf16 before it projects it, whatever the dtype; the projection, which has
    the model's own, ends then in fp32 and fp16.
Since: 0.30
Until: it keeps the dtype.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend.host.seam import When, patch

MODEL = "vllm.model_executor.models.nano_nemotron_vl"
FRAMES = 128  # of a video at once, as the host has it: more would take too much memory


@patch(
    MODEL,
    "NemotronH_Nano_VL_V2.extract_feature_dynamic(self, pixel_values, imgs_sizes)",
    when=When.COMPUTING,
)
def of_any_shape(_: Any) -> Any:
    """[1, tokens, hidden] of images one after the other."""

    def extract(self: Any, pixel_values: torch.Tensor, imgs_sizes: Any) -> torch.Tensor:
        _, states = self.vision_model(pixel_values, imgs_sizes=imgs_sizes)
        states = self.pixel_shuffle_dynamic_res(_normed(self, states), imgs_sizes=imgs_sizes)
        return self.mlp1(states)

    return extract


@patch(
    MODEL,
    "NemotronH_Nano_VL_V2.extract_feature(self, pixel_values, num_frames)",
    when=When.COMPUTING,
)
def of_tiles(_: Any) -> Any:
    """[parts, tokens, hidden] of tiles or of a video's frames."""

    def extract(
        self: Any, pixel_values: torch.Tensor, num_frames: int | None = None
    ) -> torch.Tensor:
        packed = 1 if num_frames is None else self.video_temporal_patch_size
        grid = [length // self.patch_size for length in pixel_values.shape[-2:]]
        found = []
        for frames in pixel_values.split(FRAMES - FRAMES % packed):
            told = {"num_frames": len(frames)} if packed > 1 else {}
            _, states = self.vision_model(frames, **told)
            states = _normed(self, states).unflatten(1, grid)
            shuffled = self.pixel_shuffle(states, scale_factor=self.downsample_ratio)
            found.append(self.mlp1(shuffled.flatten(1, 2)))
        return torch.cat(found)

    return extract


def _normed(model: Any, states: torch.Tensor) -> torch.Tensor:
    """Where the text has layers that draft."""
    norm = getattr(model, "vision_final_layernorm", None)  # none before 0.32
    return states if norm is None else norm(states)


@patch(
    "vllm.model_executor.models.parakeet",
    "ProjectedParakeet.forward(self, input_features, attention_mask)",
    when=When.COMPUTING,
)
def of_sounds(_: Any) -> Any:
    """[sounds, tokens, hidden]."""

    def forward(
        self: Any, input_features: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        heard = self.encoder(input_features=input_features, attention_mask=attention_mask)
        return self.projection(heard.last_hidden_state)

    return forward


@patch(
    "vllm.model_executor.models.nemotron_vl",
    "LlamaNemotronVLChatModel._call_vision_model(self, pixel_values)",
    when=When.COMPUTING,
)
def of_code(_: Any) -> Any:
    """[tiles, patches, hidden] by a tower whose code comes with the checkpoint."""

    def call(self: Any, pixel_values: torch.Tensor) -> torch.Tensor:
        features = self.vision_model(x=pixel_values).features
        return features.to(self.mlp1[0].weight.dtype)

    return call
