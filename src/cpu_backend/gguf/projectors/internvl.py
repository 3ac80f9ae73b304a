"""InternVL 2.5 to 3.5: InternViT (https://arxiv.org/abs/2412.05271) over tiles of a picture."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cpu_backend.gguf.architectures.tensors import Tensor
from cpu_backend.gguf.projectors.base import CHANNELS, Projector, with_biases

TOWER, PROJECTOR = "model.vision_tower.", "model.multi_modal_projector."
SQUARE = ("hidden", "hidden")
TILES = 12  # at most, where the file does not say; of published checkpoints


class InternVl(Projector):
    """InternViT of 300 million weights, whose norms have biases, and of 6 billion, which has norms
    by the root of mean squares, also of queries and keys."""

    kind = "internvl"
    texts = ("qwen2", "qwen3", "qwen3moe", "internlm2", "llama", "gpt-oss")
    class_name = "InternVLForConditionalGeneration"
    model_type = "internvl"
    marks: Mapping[str, str] = MappingProxyType(
        {
            "image_token": "<IMG_CONTEXT>",
            "context_image_token": "<IMG_CONTEXT>",
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "video_token": "<video>",
        }
    )
    # Only checkpoints in the form of transformers have one.
    unused: Mapping[str, tuple[str, ...]] = MappingProxyType({"video_token": ("<quad>",)})
    merge_field = "projector.scale_factor"

    @property
    def biased(self) -> bool:
        """Whether queries, keys and values have biases."""
        return "v.blk.0.attn_q.bias" in self.file.tensors

    @property
    def large(self) -> bool:
        """Whether it is the tower of 6 billion weights."""
        return "v.blk.0.attn_q_norm.weight" in self.file.tensors

    def sizes(self) -> dict[str, int]:
        sizes = super().sizes()
        return sizes | {"positions": sizes["positions"] + 1}

    def outer(self) -> dict[str, Tensor]:
        embeddings = f"{TOWER}embeddings."
        return {
            "v.class_embd": Tensor(f"{embeddings}cls_token", (1, 1, "hidden")),
            "v.position_embd.weight": Tensor(
                f"{embeddings}position_embeddings", (1, "positions", "hidden")
            ),
            **with_biases(
                {
                    "v.patch_embd": (
                        f"{embeddings}patch_embeddings.projection",
                        ("hidden", CHANNELS, "patch", "patch"),
                    ),
                    "mm.model.mlp.0": (f"{PROJECTOR}layer_norm", ("merged",)),
                    "mm.model.mlp.1": (f"{PROJECTOR}linear_1", ("text", "merged")),
                    "mm.model.mlp.3": (f"{PROJECTOR}linear_2", ("text", "text")),
                }
            ),
        }

    def layer(self) -> dict[str, Tensor]:
        parts = {f"attn_{part}": (f"attention.{part}_proj", SQUARE) for part in "qkv"}
        tensors = with_biases(
            {
                **parts,
                "ln1": ("layernorm_before", ("hidden",)),
                "ln2": ("layernorm_after", ("hidden",)),
                "attn_out": ("attention.projection_layer", SQUARE),
                "ffn_up": ("mlp.fc1", ("ffn", "hidden")),
                "ffn_down": ("mlp.fc2", ("hidden", "ffn")),
            }
        )
        without = [] if self.biased else list(parts)
        if self.large:
            without += ["ln1", "ln2"]
            for part in "qk":
                name = f"attention.{part}_norm.weight"
                tensors[f"attn_{part}_norm.weight"] = Tensor(name, ("hidden",))
        for name in without:
            del tensors[f"{name}.bias"]
        return tensors | {
            f"ls{number}.weight": Tensor(f"lambda_{number}", ("hidden",)) for number in (1, 2)
        }

    def prefix(self, number: int) -> str:
        return f"{TOWER}encoder.layer.{number}."

    def tower_config(self) -> dict[str, Any]:
        if not self.flag("use_gelu", False):
            raise self.refuse("has another activation than InternViT")
        side, patch = self.size("vision.image_size"), self.size("vision.patch_size")
        epsilon = self.number("vision.attention.layer_norm_epsilon")
        if self.large and epsilon != 1e-6:  # which the norms of queries have in any case
            raise self.refuse(f"has norms with {epsilon}")
        return {
            "model_type": "internvl_vision",
            "attention_bias": self.biased,
            "hidden_act": "gelu",
            "hidden_size": self.size("vision.embedding_length"),
            "image_size": [side, side],
            "intermediate_size": self.size("vision.feed_forward_length"),
            "layer_norm_eps": epsilon,
            "norm_type": "rms_norm" if self.large else "layer_norm",
            "num_attention_heads": self.size("vision.attention.head_count"),
            "num_channels": CHANNELS,
            "num_hidden_layers": self.num_layers,
            "patch_size": [patch, patch],
            "use_absolute_position_embeddings": True,
            "use_qk_norm": self.large,
        }

    def more(self) -> dict[str, Any]:
        return {
            "downsample_ratio": 1 / self.merged,
            "image_seq_length": self.tokens(self.merged),
            "projector_hidden_act": "gelu",
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "default",
        }

    def processor(self) -> dict[str, Any]:
        side = self.size("vision.image_size")
        shared = {
            **self.normalized(),
            "resample": 3,
            "size": {"height": side, "width": side},
        }
        return {
            "processor_class": "InternVLProcessor",
            "image_seq_length": self.tokens(self.merged),
            "image_processor": {
                **shared,
                "crop_to_patches": True,
                "image_processor_type": "GotOcr2ImageProcessor",
                "max_patches": self.size("vision.preproc_max_tiles", TILES),
                "min_patches": self.size("vision.preproc_min_tiles", 1),
            },
            "video_processor": {**shared, "video_processor_type": "InternVLVideoProcessor"},
        }


KNOWN = (InternVl,)
