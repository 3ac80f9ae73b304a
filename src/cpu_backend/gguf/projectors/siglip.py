"""The tower that many models have: SigLIP's (https://arxiv.org/abs/2303.15343)."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.tensors import Tensor
from cpu_backend.gguf.projectors.base import CHANNELS, Projector, with_biases


class Siglip(Projector):
    """tower: what the names of its tensors begin with in a checkpoint.  vision_type: the
    ``model_type`` of its config."""

    tower = ""
    vision_type = "siglip_vision_model"

    def outer(self) -> dict[str, Tensor]:
        embeddings = f"{self.tower}embeddings."
        return with_biases(
            {
                "v.patch_embd": (
                    f"{embeddings}patch_embedding",
                    ("hidden", CHANNELS, "patch", "patch"),
                ),
                "v.post_ln": (f"{self.tower}post_layernorm", ("hidden",)),
            }
        ) | {
            "v.position_embd.weight": Tensor(
                f"{embeddings}position_embedding.weight", ("positions", "hidden")
            )
        }

    def layer(self) -> dict[str, Tensor]:
        square = ("hidden", "hidden")
        return with_biases(
            {
                "ln1": ("layer_norm1", ("hidden",)),
                "ln2": ("layer_norm2", ("hidden",)),
                "attn_q": ("self_attn.q_proj", square),
                "attn_k": ("self_attn.k_proj", square),
                "attn_v": ("self_attn.v_proj", square),
                "attn_out": ("self_attn.out_proj", square),
                "ffn_up": ("mlp.fc1", ("ffn", "hidden")),
                "ffn_down": ("mlp.fc2", ("hidden", "ffn")),
            }
        )

    def prefix(self, number: int) -> str:
        return f"{self.tower}encoder.layers.{number}."

    def activation(self) -> str:
        """By its name in configs."""
        if not self.flag("use_gelu", False):
            raise self.refuse("has another activation than SigLIP")
        return "gelu_pytorch_tanh"

    def tower_config(self) -> dict[str, Any]:
        return {
            "model_type": self.vision_type,
            "hidden_act": self.activation(),
            "hidden_size": self.size("vision.embedding_length"),
            "image_size": self.size("vision.image_size"),
            "intermediate_size": self.size("vision.feed_forward_length"),
            "layer_norm_eps": self.number("vision.attention.layer_norm_epsilon"),
            "num_attention_heads": self.size("vision.attention.head_count"),
            "num_channels": CHANNELS,
            "num_hidden_layers": self.num_layers,
            "patch_size": self.size("vision.patch_size"),
            "vision_use_head": False,
        }
