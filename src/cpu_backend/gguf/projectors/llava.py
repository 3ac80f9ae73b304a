"""LLaVA 1.5 and 1.6: CLIP's tower (https://arxiv.org/abs/2103.00020) over pictures of one size."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cpu_backend.gguf.architectures.base import Architecture
from cpu_backend.gguf.architectures.tensors import Tensor
from cpu_backend.gguf.projectors.base import CHANNELS, with_biases
from cpu_backend.gguf.projectors.siglip import Siglip
from cpu_backend.gguf.reader import GgufFile

PROJECTOR = "model.multi_modal_projector."
NEWLINE = "model.image_newline"  # behind each row of patches of a picture of tiles
MOST_TILES = 36  # along a side


class Llava(Siglip):
    """LLaVA 1.5.

    Files have no layer behind the one that the text is given, which is the last but one.
    """

    kind, texts = "mlp", ("llama",)
    class_name = "LlavaForConditionalGeneration"
    model_type, vision_type = "llava", "clip_vision_model"
    processor_class, images = "LlavaProcessor", "CLIPImageProcessor"
    tower = "model.vision_tower.vision_model."
    numbered = "_index"
    marks: Mapping[str, str] = MappingProxyType({"image_token": "<image>"})
    # Texts that were made before there was one have none.
    unused: Mapping[str, tuple[str, ...]] = MappingProxyType(
        {"image_token": ("<|reserved_special_token_0|>", "<unk>")}
    )

    @classmethod
    def fits(cls, file: GgufFile, text: Architecture) -> bool:
        return super().fits(file, text) and (NEWLINE in file.tensors) == (cls is LlavaNext)

    @property
    def width(self) -> int:
        self.field("vision.projection_dim")  # of the tower that CLIP itself has
        return self.shape_of("mm.2.weight", 2)[0]

    def sizes(self) -> dict[str, int]:
        sizes = super().sizes()
        return sizes | {"positions": sizes["positions"] + 1}

    def outer(self) -> dict[str, Tensor]:
        embeddings = f"{self.tower}embeddings."
        return {
            "v.class_embd": Tensor(f"{embeddings}class_embedding", ("hidden",)),
            "v.patch_embd.weight": Tensor(
                f"{embeddings}patch_embedding.weight", ("hidden", CHANNELS, "patch", "patch")
            ),
            "v.position_embd.weight": Tensor(
                f"{embeddings}position_embedding.weight", ("positions", "hidden")
            ),
            **with_biases(
                {
                    "v.pre_ln": (f"{self.tower}pre_layrnorm", ("hidden",)),
                    "mm.0": (f"{PROJECTOR}linear_1", ("text", "hidden")),
                    "mm.2": (f"{PROJECTOR}linear_2", ("text", "text")),
                }
            ),
        }

    def activation(self) -> str:
        return "gelu" if self.flag("use_gelu", False) else "quick_gelu"

    def tower_config(self) -> dict[str, Any]:
        if self.whole_numbers("vision.feature_layer") not in ([], [self.num_layers]):
            raise self.refuse("gives its text other layers than the last")
        return super().tower_config() | {"num_hidden_layers": self.num_layers + 1}

    def more(self) -> dict[str, Any]:
        return {
            "image_seq_length": self.tokens(1),
            "projector_hidden_act": "gelu",
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
        }

    def processor(self) -> dict[str, Any]:
        side = self.size("vision.image_size")
        return {
            "processor_class": self.processor_class,
            **self.marks,
            "num_additional_image_tokens": 1,
            "patch_size": self.size("vision.patch_size"),
            "vision_feature_select_strategy": "default",
            "image_processor": {
                **self.normalized(),
                "crop_size": {"height": side, "width": side},
                "do_center_crop": True,
                "image_processor_type": self.images,
                "resample": 3,
                "size": {"shortest_edge": side},
            },
        }


class LlavaNext(Llava):
    """LLaVA 1.6: a picture is seen as a whole and in tiles."""

    class_name = "LlavaNextForConditionalGeneration"
    model_type = "llava_next"
    processor_class, images = "LlavaNextProcessor", "LlavaNextImageProcessor"

    def outer(self) -> dict[str, Tensor]:
        return super().outer() | {NEWLINE: Tensor(NEWLINE, ("text",))}

    def tiles(self) -> list[list[int]]:
        """Height and width of the grids that pictures are scaled to."""
        sides = self.whole_numbers("vision.image_grid_pinpoints")
        side = self.size("vision.image_size")
        fit = all(n > 0 and not n % side and n <= MOST_TILES * side for n in sides)
        if not sides or len(sides) % 2 or not fit:
            raise self.file.error(f"has tiles of {side} pixels, and pictures of {sides[:20]}")
        return [sides[n : n + 2] for n in range(0, len(sides), 2)]

    def more(self) -> dict[str, Any]:
        # How tiles were said to the scripts that trained it, in words that have one meaning here.
        for key, wanted in (
            ("image_aspect_ratio", "anyres"),
            ("mm_patch_merge_type", "spatial_unpad"),
            ("mm_projector_type", "mlp2x_gelu"),
        ):
            if (found := self.text(f"vision.{key}", wanted)) != wanted:
                raise self.refuse(f"has '{found}' in the field 'clip.vision.{key}'")
        for key in ("image_crop_resolution", "image_split_resolution"):
            self.field(f"vision.{key}")  # of CLIP's own processor
        return super().more() | {"image_grid_pinpoints": self.tiles()}

    def processor(self) -> dict[str, Any]:
        said = super().processor()
        said["image_processor"] |= {"do_pad": True, "image_grid_pinpoints": self.tiles()}
        return said


KNOWN = (Llava, LlavaNext)
