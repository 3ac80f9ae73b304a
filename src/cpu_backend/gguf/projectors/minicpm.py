"""MiniCPM-V 4.6: a SigLIP tower over tiles of any shape, which joins patches on its way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cpu_backend.gguf.architectures.tensors import Tensor
from cpu_backend.gguf.projectors.base import with_biases
from cpu_backend.gguf.projectors.siglip import Siglip

WINDOW = 2  # patches along a side that are joined, each time
SQUARE = ("hidden", "hidden")
TIMES = {2: "4x", 4: "16x"}  # patches along a side of a token: how many fewer tokens than patches


class MiniCpmV(Siglip):
    """With the text of Qwen 3.5."""

    kind, texts = "minicpmv4_6", ("qwen35",)
    class_name = "MiniCPMV4_6ForConditionalGeneration"
    model_type, text_type = "minicpmv4_6", "qwen3_5_text"
    vision_type = "minicpmv4_6_vision"
    tower = "model.vision_tower."
    marks: Mapping[str, str] = MappingProxyType(
        {
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "image_start_token": "<image>",
            "image_end_token": "</image>",
            "slice_start_token": "<slice>",
            "slice_end_token": "</slice>",
            "image_id_start_token": "<image_id>",
            "image_id_end_token": "</image_id>",
        }
    )

    @property
    def merged(self) -> int:
        return WINDOW

    def times(self) -> str:
        """How many fewer tokens than patches there are."""
        scale = self.size("vision.projector.scale_factor")
        if scale not in TIMES:
            raise self.refuse(f"makes a token of {scale} patches along a side")
        return TIMES[scale]

    def sizes(self) -> dict[str, int]:
        sizes = super().sizes()
        positions = self.shape_of("v.position_embd.weight", 2)[0]
        if math.isqrt(positions) ** 2 != positions:
            raise self.file.error(f"has {positions} places, which are no square")
        return sizes | {"positions": positions, "inner": WINDOW**2 * sizes["ffn"]}

    def outer(self) -> dict[str, Tensor]:
        merger, last = f"{self.tower}vit_merger.", "model.merger.mlp.0."
        tensors = super().outer() | with_biases(
            {
                "mm.input_norm": (f"{last}pre_norm", ("merged",)),
                "mm.up": (f"{last}linear_1", ("merged", "merged")),
                "mm.down": (f"{last}linear_2", ("text", "merged")),
            }
        )
        if self.times() == "4x":
            return tensors
        return tensors | with_biases(
            {
                "v.vit_merger.ln1": (f"{merger}layer_norm1", ("hidden",)),
                "v.vit_merger.attn_q": (f"{merger}self_attn.q_proj", SQUARE),
                "v.vit_merger.attn_k": (f"{merger}self_attn.k_proj", SQUARE),
                "v.vit_merger.attn_v": (f"{merger}self_attn.v_proj", SQUARE),
                "v.vit_merger.attn_out": (f"{merger}self_attn.out_proj", SQUARE),
                "v.vit_merger.ds_ln": (f"{merger}pre_norm", ("merged",)),
                "v.vit_merger.ds_ffn_up": (f"{merger}linear_1", ("inner", "merged")),
                "v.vit_merger.ds_ffn_down": (f"{merger}linear_2", ("hidden", "inner")),
            }
        )

    def tower_config(self) -> dict[str, Any]:
        config = super().tower_config()
        del config["vision_use_head"]
        patches = math.isqrt(self.sizes()["positions"])
        return config | {
            "image_size": patches * config["patch_size"],
            "insert_layer_id": self.joined_behind(),
            "window_kernel_size": [WINDOW, WINDOW],
        }

    def joined_behind(self) -> int:
        """The layer behind which patches are joined."""
        layers = self.whole_numbers("vision.wa_layer_indexes")
        if len(layers) != 1 or not 0 <= layers[0] < self.num_layers:
            raise self.file.error(f"joins patches behind the layers {layers[:9]}")
        return layers[0]

    def more(self) -> dict[str, Any]:
        return {
            "downsample_mode": self.times(),
            "drop_vision_last_layer": False,
            "image_size": self.size("vision.image_size"),
            "insert_layer_id": self.joined_behind(),
            "merge_kernel_size": [WINDOW, WINDOW],
            "merger_times": 1,
        }

    def processor(self) -> dict[str, Any]:
        shared = {
            **self.normalized(),
            "downsample_mode": self.times(),
            "patch_size": self.size("vision.patch_size"),
            "resample": 3,
            "scale_resolution": self.size("vision.image_size"),
        }
        return {
            "processor_class": "MiniCPMV4_6Processor",
            "image_processor": {**shared, "image_processor_type": "MiniCPMV4_6ImageProcessor"},
            "video_processor": {**shared, "video_processor_type": "MiniCPMV4_6VideoProcessor"},
        }


KNOWN = (MiniCpmV,)
