"""Llama 4: a tower over tiles of a picture, four patches to a token."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cpu_backend.gguf.architectures.tensors import Tensor
from cpu_backend.gguf.projectors.base import CHANNELS, Projector, with_biases

TOWER, PROJECTOR = "vision_model.", "multi_modal_projector."
SQUARE = ("hidden", "hidden")
TILES = 16  # at most, what no file says; of published checkpoints
SECOND_NORM = "attn_post_norm"


class Llama4(Projector):
    """Scout and Maverick."""

    kind, texts = "llama4", ("llama4",)
    class_name = "Llama4ForConditionalGeneration"
    model_type, text_type = "llama4", "llama4_text"
    text_weights, text_root = "language_model.model.", "language_model."
    merge_field = "projector.scale_factor"
    numbered = "_index"
    marks: Mapping[str, str] = MappingProxyType(
        {
            "image_token": "<|patch|>",
            "boi_token": "<|image_start|>",
            "eoi_token": "<|image_end|>",
            "fake_image_token": "<|image|>",
            "tile_token": "<|tile_x_separator|>",
            "tile_global_token": "<|tile_y_separator|>",
        }
    )

    def sizes(self) -> dict[str, int]:
        sizes = super().sizes()
        return sizes | {
            "positions": sizes["positions"] + 1,
            "pixels": CHANNELS * sizes["patch"] ** 2,
            "first": self.shape_of("mm.model.mlp.1.weight", 2)[0],
            "second": self.shape_of("mm.model.mlp.2.weight", 2)[0],
        }

    def outer(self) -> dict[str, Tensor]:
        adapter = f"{TOWER}vision_adapter.mlp."
        return {
            "v.class_embd": Tensor(f"{TOWER}class_embedding", ("hidden",)),
            "v.patch_embd.weight": Tensor(
                f"{TOWER}patch_embedding.linear.weight", ("hidden", "pixels")
            ),
            "v.position_embd.weight": Tensor(
                f"{TOWER}positional_embedding_vlm", ("positions", "hidden")
            ),
            **with_biases(
                {
                    "v.pre_ln": (f"{TOWER}layernorm_pre", ("hidden",)),
                    "v.post_ln": (f"{TOWER}layernorm_post", ("hidden",)),
                }
            ),
            "mm.model.mlp.1.weight": Tensor(f"{adapter}fc1.weight", ("first", "merged")),
            "mm.model.mlp.2.weight": Tensor(f"{adapter}fc2.weight", ("second", "first")),
            "mm.model.fc.weight": Tensor(
                "multi_modal_projector.linear_1.weight", ("text", "second")
            ),
        }

    def layer(self) -> dict[str, Tensor]:
        new = f"v.blk.0.{SECOND_NORM}.weight" in self.file.tensors
        return with_biases(
            {
                "ln1": ("input_layernorm", ("hidden",)),
                SECOND_NORM if new else "ln2": ("post_attention_layernorm", ("hidden",)),
                "attn_q": ("self_attn.q_proj", SQUARE),
                "attn_k": ("self_attn.k_proj", SQUARE),
                "attn_v": ("self_attn.v_proj", SQUARE),
                "attn_out": ("self_attn.o_proj", SQUARE),
                "ffn_up": ("mlp.fc1", ("ffn", "hidden")),
                "ffn_down": ("mlp.fc2", ("hidden", "ffn")),
            }
        )

    def prefix(self, number: int) -> str:
        return f"{TOWER}model.layers.{number}."

    def tower_config(self) -> dict[str, Any]:
        if not self.flag("use_gelu", False):
            raise self.refuse("has another activation than Llama 4")
        # The host's class has this one in it.
        if abs(self.number("vision.attention.layer_norm_epsilon") - 1e-5) > 1e-8:
            raise self.refuse("has other norms than Llama 4")
        sizes = self.sizes()
        if sizes["ffn"] != sizes["merged"]:  # which are one field
            raise self.file.error(f"has layers of {sizes['ffn']} and {sizes['merged']} channels")
        return {
            "model_type": "llama4_vision_model",
            "hidden_act": "gelu",
            "hidden_size": sizes["hidden"],
            "image_size": self.size("vision.image_size"),
            "intermediate_size": sizes["ffn"],
            "multi_modal_projector_bias": False,
            "norm_eps": 1e-5,
            "num_attention_heads": self.size("vision.attention.head_count"),
            "num_channels": CHANNELS,
            "num_hidden_layers": self.num_layers,
            "patch_size": sizes["patch"],
            "pixel_shuffle_ratio": 1 / self.merged,
            "projector_input_dim": sizes["first"],
            "projector_output_dim": sizes["second"],
            "rope_theta": 10000.0,
            "vision_feature_select_strategy": "default",
            "vision_output_dim": sizes["second"],
        }

    def processor(self) -> dict[str, Any]:
        side = self.size("vision.image_size")
        if self.merged != 2:  # which processors take for granted
            raise self.refuse(f"makes a token of {self.merged} patches along a side")
        self.tokens(self.merged)  # whole ones
        return {
            "processor_class": "Llama4Processor",
            "fake_image_token": "<|image|>",
            "image_token": "<|image|>",
            "patch_size": self.size("vision.patch_size"),
            "image_processor": {
                **self.normalized(),
                "image_processor_type": "Llama4ImageProcessor",
                "max_patches": TILES,
                "resample": 2,
                "resize_to_max_canvas": False,
                "size": {"height": side, "width": side},
            },
        }


KNOWN = (Llama4,)
