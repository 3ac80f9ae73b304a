"""Pixtral (https://arxiv.org/abs/2410.07073), and its tower in Mistral Small 3 and Ministral 3."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cpu_backend.gguf.architectures.base import Architecture
from cpu_backend.gguf.architectures.tensors import Tensor
from cpu_backend.gguf.projectors.base import CHANNELS, Projector, with_biases
from cpu_backend.gguf.reader import GgufFile

TOWER, PROJECTOR = "model.vision_tower.", "model.multi_modal_projector."
SQUARE = ("hidden", "hidden")
MERGER = "mm.patch_merger.weight"


class Pixtral(Projector):
    """Pixtral 12B: a tower that turns heads as its text does, a token for each patch."""

    kind = "pixtral"
    texts: tuple[str, ...] = ("llama",)
    class_name = "LlavaForConditionalGeneration"
    model_type = "llava"
    marks: Mapping[str, str] = MappingProxyType(
        {
            "image_token": "[IMG]",
            "image_break_token": "[IMG_BREAK]",
            "image_end_token": "[IMG_END]",
        }
    )
    numbered = "_index"

    @classmethod
    def fits(cls, file: GgufFile, text: Architecture) -> bool:
        return super().fits(file, text) and (MERGER in file.tensors) == bool(cls.merge_field)

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {"heads": self.size("vision.attention.head_count")}

    def outer(self) -> dict[str, Tensor]:
        return {
            "v.patch_embd.weight": Tensor(
                f"{TOWER}patch_conv.weight", ("hidden", CHANNELS, "patch", "patch")
            ),
            "v.pre_ln.weight": Tensor(f"{TOWER}ln_pre.weight", ("hidden",)),
            **self.joining(),
        }

    def joining(self) -> dict[str, Tensor]:
        """The tensors between tower and text."""
        return with_biases(
            {
                "mm.1": (f"{PROJECTOR}linear_1", ("text", "hidden")),
                "mm.2": (f"{PROJECTOR}linear_2", ("text", "text")),
            }
        )

    def layer(self) -> dict[str, Tensor]:
        return {
            "ln1.weight": Tensor("attention_norm.weight", ("hidden",)),
            "ln2.weight": Tensor("ffn_norm.weight", ("hidden",)),
            "attn_q.weight": Tensor("attention.q_proj.weight", SQUARE, heads="heads"),
            "attn_k.weight": Tensor("attention.k_proj.weight", SQUARE, heads="heads"),
            "attn_v.weight": Tensor("attention.v_proj.weight", SQUARE),
            "attn_out.weight": Tensor("attention.o_proj.weight", SQUARE),
            "ffn_gate.weight": Tensor("feed_forward.gate_proj.weight", ("ffn", "hidden")),
            "ffn_up.weight": Tensor("feed_forward.up_proj.weight", ("ffn", "hidden")),
            "ffn_down.weight": Tensor("feed_forward.down_proj.weight", ("hidden", "ffn")),
        }

    def prefix(self, number: int) -> str:
        return f"{TOWER}transformer.layers.{number}."

    def ignored(self, name: str) -> bool:
        return name == "v.token_embd.img_break"  # a row of the text's table

    def tower_config(self) -> dict[str, Any]:
        activations = [name for name in ("silu", "gelu") if self.flag(f"use_{name}", False)]
        if len(activations) != 1:
            raise self.refuse("does not say its activation")
        heads, hidden = self.size("vision.attention.head_count"), self.sizes()["hidden"]
        if hidden % (2 * heads):
            raise self.file.error(f"has {heads} heads in {hidden} channels")
        # The host's class has this one in it.
        if abs(self.number("vision.attention.layer_norm_epsilon") - 1e-5) > 1e-8:
            raise self.refuse("has other norms than Pixtral")
        return {
            "model_type": "pixtral",
            "head_dim": hidden // heads,
            "hidden_act": activations[0],
            "hidden_size": hidden,
            "image_size": self.size("vision.image_size"),
            "intermediate_size": self.size("vision.feed_forward_length"),
            "num_attention_heads": heads,
            "num_channels": CHANNELS,
            "num_hidden_layers": self.num_layers,
            "patch_size": self.size("vision.patch_size"),
            "rope_theta": 10000.0,
        }

    def more(self) -> dict[str, Any]:
        return {
            "image_seq_length": 1,
            "projector_hidden_act": "gelu",
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        }

    def processor(self) -> dict[str, Any]:
        patch = self.size("vision.patch_size")
        return {
            "processor_class": "PixtralProcessor",
            **self.marks,
            "patch_size": patch,
            "spatial_merge_size": self.merged,
            "image_processor": {
                **self.normalized(),
                "do_pad": True,
                "image_processor_type": "PixtralImageProcessor",
                "patch_size": patch,
                "resample": 3,
                "size": {"longest_edge": self.size("vision.image_size")},
            },
        }


class Mistral3(Pixtral):
    """Mistral Small 3.1 and later, Ministral 3: four patches to a token."""

    texts = ("mistral3", "llama")
    class_name = "Mistral3ForConditionalGeneration"
    model_type = "mistral3"
    merge_field = "spatial_merge_size"

    def joining(self) -> dict[str, Tensor]:
        return {
            "mm.input_norm.weight": Tensor(f"{PROJECTOR}norm.weight", ("hidden",)),
            MERGER: Tensor(f"{PROJECTOR}patch_merger.merging_layer.weight", ("hidden", "merged")),
            "mm.1.weight": Tensor(f"{PROJECTOR}linear_1.weight", ("text", "hidden")),
            "mm.2.weight": Tensor(f"{PROJECTOR}linear_2.weight", ("text", "text")),
        }

    def more(self) -> dict[str, Any]:
        return {
            "multimodal_projector_bias": False,
            "projector_hidden_act": "gelu",
            "spatial_merge_size": self.merged,
            "vision_feature_layer": -1,
        }


KNOWN = (Pixtral, Mistral3)
