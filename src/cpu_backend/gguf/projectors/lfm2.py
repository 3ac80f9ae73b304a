"""LFM2-VL: a SigLIP 2 tower over pictures of any shape, and over tiles of large ones."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cpu_backend.gguf.architectures.tensors import Tensor
from cpu_backend.gguf.projectors.base import CHANNELS, patches_last, with_biases
from cpu_backend.gguf.projectors.siglip import Siglip

PROJECTOR = "model.multi_modal_projector."
# What no file says; of published checkpoints.
TILES = {
    "do_image_splitting": True,
    "max_image_tokens": 256,
    "max_num_patches": 1024,
    "max_pixels_tolerance": 2.0,
    "max_tiles": 10,
    "min_image_tokens": 64,
    "min_tiles": 2,
    "tile_size": 512,
    "use_thumbnail": True,
}


class Lfm2Vl(Siglip):
    """LFM2 and LFM2.5 VL."""

    kind, texts = "lfm2", ("lfm2", "lfm2moe")
    class_name = "Lfm2VlForConditionalGeneration"
    model_type = "lfm2_vl"
    vision_type = "siglip2_vision_model"
    tower = "model.vision_tower.vision_model."
    text_modules = "language.model."
    merge_field = "projector.scale_factor"
    marks: Mapping[str, str] = MappingProxyType(
        {
            "image_token": "<image>",
            "image_start_token": "<|image_start|>",
            "image_end_token": "<|image_end|>",
            "image_thumbnail_token": "<|img_thumbnail|>",
        }
    )

    @property
    def normed(self) -> bool:
        """Whether the projector begins with a norm."""
        return "mm.input_norm.weight" in self.file.tensors

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {
            "positions": self.shape_of("v.position_embd.weight", 2)[0],
            "inner": self.shape_of("mm.1.weight", 2)[0],
        }

    def outer(self) -> dict[str, Tensor]:
        tensors = super().outer()
        tensors["v.patch_embd.weight"] = Tensor(
            tensors["v.patch_embd.weight"].name,
            ("hidden", CHANNELS, "patch", "patch"),
            values=patches_last,
        )
        layers: dict[str, tuple[str, tuple[str | int, ...]]] = {
            "mm.1": (f"{PROJECTOR}linear_1", ("inner", "merged")),
            "mm.2": (f"{PROJECTOR}linear_2", ("text", "inner")),
        }
        if self.normed:
            layers["mm.input_norm"] = (f"{PROJECTOR}layer_norm", ("merged",))
        return tensors | with_biases(layers)

    def tower_config(self) -> dict[str, Any]:
        config = super().tower_config()
        del config["image_size"]  # of no meaning
        return config | {"num_patches": self.sizes()["positions"]}

    def more(self) -> dict[str, Any]:
        return {
            "downsample_factor": self.merged,
            "projector_bias": True,
            "projector_hidden_act": "gelu",
            "projector_hidden_size": self.sizes()["inner"],
            "projector_use_layernorm": self.normed,
        }

    def processor(self) -> dict[str, Any]:
        images = self.normalized()
        del images["do_convert_rgb"]
        return {
            "processor_class": "Lfm2VlProcessor",
            "image_processor": {
                **images,
                **TILES,
                "do_pad": True,
                "downsample_factor": self.merged,
                "encoder_patch_size": self.size("vision.patch_size"),
                "image_processor_type": "Lfm2VlImageProcessor",
                "resample": 2,
            },
        }


KNOWN = (Lfm2Vl,)
