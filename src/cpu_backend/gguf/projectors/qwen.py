"""Qwen 2, 2.5 and 3 VL, Qwen 3.5: towers over pictures of any size, four patches to a token."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from cpu_backend.gguf.architectures.base import Architecture
from cpu_backend.gguf.architectures.tensors import Tensor
from cpu_backend.gguf.projectors.base import CHANNELS, Projector, with_biases
from cpu_backend.gguf.reader import GgufFile

FRAMES = 2  # of a video that are one patch; a picture is given twice
SQUARE = ("hidden", "hidden")
# What no file says; of published checkpoints.
WINDOW = 112  # pixels, of layers with windows (https://arxiv.org/abs/2502.13923)
PIXELS = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 16384}
PIXELS_3 = {"shortest_edge": 256 * 256, "longest_edge": 4096 * 4096}


def two_frames(first: Any, second: Any) -> Any:
    """One convolution over two pictures, of two over one each."""
    import torch

    return torch.stack((first, second), 2)


class Qwen(Projector):
    """What they share.  sections: the field of the text says how many of a head's rotations are of
    time, height and width.  tower: what the names of its tensors begin with in a checkpoint."""

    tower = "model.visual."
    interleaved = False
    merge_field = "spatial_merge_size"
    processor_class = ""
    video_processor = "Qwen2VLVideoProcessor"
    pixels = PIXELS
    marks: Mapping[str, str] = MappingProxyType(
        {
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "vision_start_token": "<|vision_start|>",
            "vision_end_token": "<|vision_end|>",
        }
    )

    def __init__(self, file: GgufFile, text: Architecture) -> None:
        super().__init__(file, text)
        found = text.file.metadata.get(f"{text.name}.rope.dimension_sections")
        sections = [int(n) for n in found.tolist()] if isinstance(found, np.ndarray) else []
        rotated = text.size("rope.dimension_count", text.head_dim)
        if len(sections) != 4 or sections[3] or 2 * sum(sections) != rotated:
            raise text.file.error("does not say which rotations are of a picture's height")
        self.sections = sections[:3]

    def sizes(self) -> dict[str, int]:
        sizes = super().sizes()
        return sizes | {"qkv": 3 * sizes["hidden"]}

    def two_frames_at_once(self) -> dict[str, Tensor]:
        """What makes tokens of two frames of a video, or of one picture twice."""
        patch = ("hidden", CHANNELS, "patch", "patch")
        return {
            "v.patch_embd.weight": Tensor(
                f"{self.tower}patch_embed.proj.weight",
                patch,
                values=two_frames,
                beside=("v.patch_embd.weight.1", patch),
            )
        }

    def outer(self) -> dict[str, Tensor]:
        return {
            **self.two_frames_at_once(),
            **with_biases(
                {
                    "mm.0": (f"{self.tower}{self.merger(0)}", ("merged", "merged")),
                    "mm.2": (f"{self.tower}{self.merger(2)}", ("text", "merged")),
                }
            ),
        }

    def merger(self, number: int) -> str:
        """The name of one of the two matrices at the end."""
        return f"merger.mlp.{number}"

    def prefix(self, number: int) -> str:
        return f"{self.tower}blocks.{number}."

    def tower_config(self) -> dict[str, Any]:
        return {
            "model_type": self.model_type,
            "depth": self.num_layers,
            "hidden_size": self.size("vision.embedding_length"),
            "in_channels": CHANNELS,
            "intermediate_size": self.size("vision.feed_forward_length"),
            "num_heads": self.size("vision.attention.head_count"),
            "out_hidden_size": self.size("vision.projection_dim"),
            "patch_size": self.size("vision.patch_size"),
            "spatial_merge_size": self.merged,
            "temporal_patch_size": FRAMES,
        }

    def more(self) -> dict[str, Any]:
        # Where the host looks for that of its tower.
        return {"rms_norm_eps": self.number("vision.attention.layer_norm_epsilon")}

    def of_text(self, config: dict[str, Any]) -> dict[str, Any]:
        scaling: dict[str, Any] = {"rope_type": "default", "mrope_section": self.sections}
        if self.interleaved:
            scaling["mrope_interleaved"] = True
        if partial := config.get("partial_rotary_factor"):
            scaling["partial_rotary_factor"] = partial
        return super().of_text(config) | {"rope_scaling": scaling}

    def processor(self) -> dict[str, Any]:
        shared = {
            **self.normalized(),
            "merge_size": self.merged,
            "patch_size": self.size("vision.patch_size"),
            "resample": 3,
            "temporal_patch_size": FRAMES,
        }
        return {
            "processor_class": self.processor_class,
            "image_processor": {
                **shared,
                "image_processor_type": "Qwen2VLImageProcessor",
                "size": self.pixels,
            },
            "video_processor": {**shared, "video_processor_type": self.video_processor},
        }


def separate(own: dict[str, tuple[str, tuple[str, ...]]]) -> dict[str, Tensor]:
    """Queries, keys and values of three tensors, and ``own``."""
    shapes: dict[str, tuple[str, ...]] = {"weight": SQUARE, "bias": ("hidden",)}
    fused = {
        "+".join(f"attn_{part}.{end}" for part in "qkv"): Tensor(f"attn.qkv.{end}", shape)
        for end, shape in shapes.items()
    }
    return fused | with_biases({"attn_out": ("attn.proj", SQUARE), **own})


class Qwen2Vl(Qwen):
    """Qwen 2 VL."""

    kind, texts = "qwen2vl_merger", ("qwen2vl",)
    class_name = "Qwen2VLForConditionalGeneration"
    model_type, text_type = "qwen2_vl", "qwen2_vl_text"
    processor_class = "Qwen2VLProcessor"

    @property
    def ffn(self) -> int:
        """The width of a layer's second half, which the field does not say."""
        return self.shape_of("v.blk.0.ffn_up.weight", 2)[0]

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {"ffn": self.ffn}

    def outer(self) -> dict[str, Tensor]:
        return super().outer() | with_biases(
            {"v.post_ln": (f"{self.tower}merger.ln_q", ("hidden",))}
        )

    def layer(self) -> dict[str, Tensor]:
        return separate(
            {
                "ln1": ("norm1", ("hidden",)),
                "ln2": ("norm2", ("hidden",)),
                "ffn_up": ("mlp.fc1", ("ffn", "hidden")),
                "ffn_down": ("mlp.fc2", ("hidden", "ffn")),
            }
        )

    def tower_config(self) -> dict[str, Any]:
        if self.flag("use_gelu", False) or self.flag("use_silu", False):
            raise self.refuse("has another activation than Qwen 2 VL")
        config = super().tower_config()
        width = config.pop("hidden_size")
        del config["intermediate_size"]
        text = config.pop("out_hidden_size")
        if self.ffn % width:
            raise self.file.error(f"has layers of {width} and {self.ffn} channels")
        return config | {"embed_dim": width, "hidden_size": text, "mlp_ratio": self.ffn // width}


class Qwen25Vl(Qwen):
    """Qwen 2.5 VL: most layers of its tower have windows."""

    kind, texts = "qwen2.5vl_merger", ("qwen2vl",)
    class_name = "Qwen2_5_VLForConditionalGeneration"
    model_type, text_type = "qwen2_5_vl", "qwen2_5_vl_text"
    processor_class = "Qwen2_5_VLProcessor"

    def outer(self) -> dict[str, Tensor]:
        norm = Tensor(f"{self.tower}merger.ln_q.weight", ("hidden",))
        return super().outer() | {"v.post_ln.weight": norm}

    def layer(self) -> dict[str, Tensor]:
        norms = {f"ln{n}.weight": Tensor(f"norm{n}.weight", ("hidden",)) for n in (1, 2)}
        return norms | separate(
            {
                "ffn_gate": ("mlp.gate_proj", ("ffn", "hidden")),
                "ffn_up": ("mlp.up_proj", ("ffn", "hidden")),
                "ffn_down": ("mlp.down_proj", ("hidden", "ffn")),
            }
        )

    def tower_config(self) -> dict[str, Any]:
        if not self.flag("use_silu", False):
            raise self.refuse("has another activation than Qwen 2.5 VL")
        period = self.size("vision.n_wa_pattern")
        return super().tower_config() | {
            "fullatt_block_indexes": list(range(period - 1, self.num_layers, period)),
            "hidden_act": "silu",
            "tokens_per_second": 2,
            "window_size": WINDOW,
        }


class Qwen3Vl(Qwen):
    """Qwen 3 VL: what some layers of the tower give is added to layers of the text."""

    kind, texts = "qwen3vl_merger", ("qwen3vl",)
    class_name = "Qwen3VLForConditionalGeneration"
    model_type, text_type = "qwen3_vl", "qwen3_vl_text"
    processor_class, video_processor = "Qwen3VLProcessor", "Qwen3VLVideoProcessor"
    interleaved = True
    pixels = PIXELS_3

    def outer(self) -> dict[str, Tensor]:
        mergers: dict[str, tuple[str, tuple[str | int, ...]]] = {}
        for number, layer in enumerate(self.deep()):
            own = f"{self.tower}deepstack_merger_list.{number}."
            mergers |= {
                f"v.deepstack.{layer}.norm": (f"{own}norm", ("merged",)),
                f"v.deepstack.{layer}.fc1": (f"{own}linear_fc1", ("merged", "merged")),
                f"v.deepstack.{layer}.fc2": (f"{own}linear_fc2", ("text", "merged")),
            }
        return {
            **super().outer(),
            "v.patch_embd.bias": Tensor(f"{self.tower}patch_embed.proj.bias", ("hidden",)),
            "v.position_embd.weight": Tensor(
                f"{self.tower}pos_embed.weight", ("positions", "hidden")
            ),
            **with_biases({"v.post_ln": (f"{self.tower}merger.norm", ("hidden",)), **mergers}),
        }

    def merger(self, number: int) -> str:
        return f"merger.linear_fc{number // 2 + 1}"

    def deep(self) -> list[int]:
        """The layers whose results go to the text, too."""
        found = self.file.metadata.get(self.field("vision.is_deepstack_layers"))
        flags = found.tolist() if isinstance(found, np.ndarray) else []
        if len(flags) != self.num_layers:
            raise self.file.error("does not say which layers of its tower go to the text")
        return [number for number, flag in enumerate(flags) if flag]

    def layer(self) -> dict[str, Tensor]:
        return with_biases(
            {
                "ln1": ("norm1", ("hidden",)),
                "ln2": ("norm2", ("hidden",)),
                "attn_qkv": ("attn.qkv", ("qkv", "hidden")),
                "attn_out": ("attn.proj", SQUARE),
                "ffn_up": ("mlp.linear_fc1", ("ffn", "hidden")),
                "ffn_down": ("mlp.linear_fc2", ("hidden", "ffn")),
            }
        )

    def tower_config(self) -> dict[str, Any]:
        if not self.flag("use_gelu", False):
            raise self.refuse("has another activation than Qwen 3 VL")
        return super().tower_config() | {
            "deepstack_visual_indexes": self.deep(),
            "hidden_act": "gelu_pytorch_tanh",
            "num_position_embeddings": self.patches**2,
        }


class Qwen3VlMoe(Qwen3Vl):
    """Qwen 3 VL with experts."""

    texts = ("qwen3vlmoe",)
    class_name = "Qwen3VLMoeForConditionalGeneration"
    model_type, text_type = "qwen3_vl_moe", "qwen3_vl_moe_text"


class Qwen35(Qwen3Vl):
    """Qwen 3.5, where nothing but the last layer's results goes to the text."""

    texts = ("qwen35",)
    class_name = "Qwen3_5ForConditionalGeneration"
    model_type, text_type = "qwen3_5", "qwen3_5_text"


class Qwen35Moe(Qwen3Vl):
    """Qwen 3.5 with experts."""

    texts = ("qwen35moe",)
    class_name = "Qwen3_5MoeForConditionalGeneration"
    model_type, text_type = "qwen3_5_moe", "qwen3_5_moe_text"


KNOWN = (Qwen2Vl, Qwen25Vl, Qwen3Vl, Qwen3VlMoe, Qwen35, Qwen35Moe)
