"""GLM-4.1V to GLM-4.6V and GLM-OCR: towers over pictures of any size, four patches to a token
(https://arxiv.org/abs/2507.01006)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cpu_backend.gguf.architectures.base import Architecture
from cpu_backend.gguf.architectures.tensors import Tensor
from cpu_backend.gguf.projectors.base import with_biases
from cpu_backend.gguf.projectors.qwen import SQUARE, Qwen
from cpu_backend.gguf.reader import GgufFile

# What no file says; of published checkpoints.
PIXELS = {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 12288}
OCR_NORM = "v.blk.0.attn_q_norm.weight"  # only GLM-OCR has


def weights(tensors: dict[str, tuple[str, tuple[str | int, ...]]]) -> dict[str, Tensor]:
    """Matrices and norms without biases."""
    return {
        f"{name}.weight": Tensor(f"{own}.weight", shape) for name, (own, shape) in tensors.items()
    }


class Glm4v(Qwen):
    """GLM-4.1V and GLM-4.6V-Flash.

    ffn, joined: the sizes of which a layer's second half and what joins patches are.
    """

    kind, texts = "glm4v", ("glm4",)
    class_name = "Glm4vForConditionalGeneration"
    model_type, text_type = "glm4v", "glm4v_text"
    pixels = PIXELS
    merge_field = ""
    ffn, joined = "text", "ffn"
    marks: Mapping[str, str] = MappingProxyType(
        {
            "image_token": "<|image|>",
            "video_token": "<|video|>",
            "image_start_token": "<|begin_of_image|>",
            "image_end_token": "<|end_of_image|>",
            "video_start_token": "<|begin_of_video|>",
            "video_end_token": "<|end_of_video|>",
        }
    )

    def __init__(self, file: GgufFile, text: Architecture) -> None:
        super().__init__(file, text)
        # The names of models are all that tells how frames of videos are chosen and told.
        names = (str(part.metadata.get("general.name", "")) for part in (file, text.file))
        self.newer = any("4.6v" in name.lower().replace(" ", "") for name in names)

    @classmethod
    def fits(cls, file: GgufFile, text: Architecture) -> bool:
        return super().fits(file, text) and (OCR_NORM in file.tensors) == (cls is GlmOcr)

    @property
    def merged(self) -> int:
        return 2

    def sizes(self) -> dict[str, int]:
        head = self.size("vision.embedding_length") // self.size("vision.attention.head_count")
        return super().sizes() | {"head": head, "thrice": 3 * self.width}

    def outer(self) -> dict[str, Tensor]:
        return {
            **self.two_frames_at_once(),
            "v.patch_embd.bias": Tensor(f"{self.tower}patch_embed.proj.bias", ("hidden",)),
            **with_biases(
                {
                    "mm.patch_merger": (
                        f"{self.tower}downsample",
                        ("text", "hidden", self.merged, self.merged),
                    ),
                    "mm.post_norm": (f"{self.tower}merger.post_projection_norm", ("text",)),
                }
            ),
            **weights(
                {
                    "v.post_ln": (f"{self.tower}post_layernorm", ("hidden",)),
                    "mm.model.fc": (f"{self.tower}merger.proj", ("text", "text")),
                    "mm.gate": (f"{self.tower}merger.gate_proj", (self.joined, "text")),
                    "mm.up": (f"{self.tower}merger.up_proj", (self.joined, "text")),
                    "mm.down": (f"{self.tower}merger.down_proj", ("text", self.joined)),
                    **self.positions(),
                }
            ),
        }

    def positions(self) -> dict[str, tuple[str, tuple[str | int, ...]]]:
        """What is added to patches by their places, and the norm before it."""
        return {
            "v.norm_embd": (f"{self.tower}post_conv_layernorm", ("hidden",)),
            "v.position_embd": (
                f"{self.tower}embeddings.position_embedding",
                ("positions", "hidden"),
            ),
        }

    def products(self) -> dict[str, tuple[str, tuple[str | int, ...]]]:
        """The matrices of a layer."""
        return {
            "attn_qkv": ("attn.qkv", ("qkv", "hidden")),
            "attn_out": ("attn.proj", SQUARE),
            "ffn_gate": ("mlp.gate_proj", (self.ffn, "hidden")),
            "ffn_up": ("mlp.up_proj", (self.ffn, "hidden")),
            "ffn_down": ("mlp.down_proj", ("hidden", self.ffn)),
        }

    def layer(self) -> dict[str, Tensor]:
        norms: dict[str, tuple[str, tuple[str | int, ...]]] = {
            f"ln{n}": (f"norm{n}", ("hidden",)) for n in (1, 2)
        }
        return weights(norms | self.products())

    def tower_config(self) -> dict[str, Any]:
        if not self.flag("use_silu", False):
            raise self.refuse("has another activation than GLM's")
        return super().tower_config() | {
            "model_type": f"{self.model_type}_vision",
            "attention_bias": False,
            "hidden_act": "silu",
            "image_size": self.size("vision.image_size"),
            "rms_norm_eps": self.number("vision.attention.layer_norm_epsilon"),
        }

    def more(self) -> dict[str, Any]:
        return {}

    def processor(self) -> dict[str, Any]:
        name = "Glm46V" if self.newer else "Glm4v"
        said = super().processor()
        said["image_processor"]["image_processor_type"] = f"{name}ImageProcessor"
        said["video_processor"]["video_processor_type"] = f"{name}VideoProcessor"
        return said | {"processor_class": f"{name}Processor"}


class Glm4vMoe(Glm4v):
    """GLM-4.5V and GLM-4.6V."""

    texts = ("glm4moe",)
    class_name = "Glm4vMoeForConditionalGeneration"
    model_type, text_type = "glm4v_moe", "glm4v_moe_text"


class GlmOcr(Glm4v):
    """GLM-OCR, whose tower has biases, norms of heads and no table of places."""

    class_name = "GlmOcrForConditionalGeneration"
    model_type, text_type = "glm_ocr", "glm_ocr_text"
    ffn, joined = "ffn", "thrice"

    def __init__(self, file: GgufFile, text: Architecture) -> None:
        super().__init__(file, text)
        self.newer = True

    def positions(self) -> dict[str, tuple[str, tuple[str | int, ...]]]:
        return {}

    def layer(self) -> dict[str, Tensor]:
        heads = weights({f"attn_{p}_norm": (f"attn.{p}_norm", ("head",)) for p in "qk"})
        return super().layer() | heads | with_biases(self.products())

    def tower_config(self) -> dict[str, Any]:
        return super().tower_config() | {"attention_bias": True}


KNOWN = (Glm4v, Glm4vMoe, GlmOcr)
