"""Gemma 3: a SigLIP tower over pictures of one size, averages of its patches."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cpu_backend.gguf.architectures.tensors import Tensor, minus_one
from cpu_backend.gguf.projectors.base import CHANNELS, Projector, with_biases

TOWER = "model.vision_tower.vision_model."
PROJECTOR = "model.multi_modal_projector."
# https://arxiv.org/abs/2503.19786: 4,096 patches become 256 tokens.
POOLED = 4  # patches along a side that become one, where the file does not say


class Gemma3(Projector):
    """Gemma 3 of 4, 12 and 27 billion weights."""

    kind, texts = "gemma3", ("gemma3",)
    class_name = "Gemma3ForConditionalGeneration"
    model_type, text_type = "gemma3", "gemma3_text"
    marks: Mapping[str, str] = MappingProxyType(
        {
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        }
    )
    numbered = "_index"
    # The last token of checkpoints, which is none of SentencePiece's, is missing in some files.
    unused = tuple(f"<unused{number}>" for number in range(98, -1, -1))

    def outer(self) -> dict[str, Tensor]:
        embedding = f"{TOWER}embeddings.patch_embedding"
        return {
            **with_biases({"v.patch_embd": (embedding, ("hidden", CHANNELS, "patch", "patch"))}),
            **with_biases({"v.post_ln": (f"{TOWER}post_layernorm", ("hidden",))}),
            "v.position_embd.weight": Tensor(
                f"{TOWER}embeddings.position_embedding.weight", ("positions", "hidden")
            ),
            "mm.input_projection.weight": Tensor(
                f"{PROJECTOR}mm_input_projection_weight", ("hidden", "text")
            ),
            "mm.soft_emb_norm.weight": Tensor(
                f"{PROJECTOR}mm_soft_emb_norm.weight", ("hidden",), values=minus_one
            ),
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
        return f"{TOWER}encoder.layers.{number}."

    def vision(self) -> dict[str, Any]:
        if not self.flag("use_gelu", False):
            raise self.refuse("has another activation than SigLIP")
        return {
            "model_type": "siglip_vision_model",
            "hidden_act": "gelu_pytorch_tanh",
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

    def more(self) -> dict[str, Any]:
        return {"mm_tokens_per_image": self.tokens()}

    def tokens(self) -> int:
        """Of a picture."""
        pooled = self.size("vision.projector.scale_factor", POOLED)
        if self.patches % pooled:
            raise self.file.error(f"makes one of {pooled} of {self.patches} patches along a side")
        return (self.patches // pooled) ** 2

    def processor(self) -> dict[str, Any]:
        side = self.size("vision.image_size")
        size = {"height": side, "width": side}
        return {
            "processor_class": "Gemma3Processor",
            "image_seq_length": self.tokens(),
            "image_processor": {
                **self.normalized(),
                "image_processor_type": "Gemma3ImageProcessor",
                "resample": 2,
                "size": size,
            },
        }


KNOWN = (Gemma3,)
