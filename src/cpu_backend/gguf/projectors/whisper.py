"""Models that hear by the encoder of Whisper (https://arxiv.org/abs/2212.04356), and do not see."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cpu_backend.gguf.architectures.tensors import Tensor
from cpu_backend.gguf.projectors.base import Projector, with_biases

TOWER, PROJECTOR = "audio_tower.", "multi_modal_projector."
A_SECOND = 50  # frames


def encoder_layer(hidden: str, ffn: str) -> dict[str, Tensor]:
    """The tensors of a layer, whose keys have no biases; hidden, ffn: names of sizes."""
    square = (hidden, hidden)
    tensors = with_biases(
        {
            "ln1": ("self_attn_layer_norm", (hidden,)),
            "ln2": ("final_layer_norm", (hidden,)),
            "attn_q": ("self_attn.q_proj", square),
            "attn_k": ("self_attn.k_proj", square),
            "attn_v": ("self_attn.v_proj", square),
            "attn_out": ("self_attn.out_proj", square),
            "ffn_up": ("fc1", (ffn, hidden)),
            "ffn_down": ("fc2", (hidden, ffn)),
        }
    )
    del tensors["attn_k.bias"]
    return tensors


def encoder_config(projector: Projector, hidden: int, ffn: int) -> dict[str, Any]:
    """What configs of the encoder say in the same words."""
    # Classes have this one in them.
    if abs(projector.number("audio.attention.layer_norm_epsilon") - 1e-5) > 1e-8:
        raise projector.refuse("has other norms than Whisper")
    heads = projector.size("audio.attention.head_count")
    if hidden % heads:
        raise projector.file.error(f"has {heads} heads in {hidden} channels")
    return {
        "activation_function": "gelu",
        "d_model": hidden,
        "encoder_attention_heads": heads,
        "encoder_ffn_dim": ffn,
        "encoder_layers": projector.count("audio.block_count"),
        "num_mel_bins": projector.size("audio.num_mel_bins"),
        "scale_embedding": False,
    }


class Qwen2Audio(Projector):
    """Qwen2-Audio: half as many tokens as the encoder has frames."""

    sense = "audio"
    kind, texts = "qwen2a", ("qwen2",)
    class_name = "Qwen2AudioForConditionalGeneration"
    model_type = "qwen2_audio"
    needs = ()
    text_weights, text_root = "language_model.model.", "language_model."
    marks: Mapping[str, str] = MappingProxyType(
        {
            "audio_token": "<|AUDIO|>",
            "audio_bos_token": "<|audio_bos|>",
            "audio_eos_token": "<|audio_eos|>",
        }
    )
    numbered = "_index"

    def sizes(self) -> dict[str, int]:
        return {
            "hidden": self.size("audio.embedding_length"),
            "ffn": self.size("audio.feed_forward_length"),
            "mels": self.size("audio.num_mel_bins"),
            "positions": self.shape_of("a.position_embd.weight", 2)[0],
            "text": self.width,
        }

    def outer(self) -> dict[str, Tensor]:
        return {
            "a.position_embd.weight": Tensor(
                f"{TOWER}embed_positions.weight", ("positions", "hidden")
            ),
            **with_biases(
                {
                    "a.conv1d.1": (f"{TOWER}conv1", ("hidden", "mels", 3)),
                    "a.conv1d.2": (f"{TOWER}conv2", ("hidden", "hidden", 3)),
                    "a.post_ln": (f"{TOWER}layer_norm", ("hidden",)),
                    **self.joining(),
                }
            ),
        }

    def joining(self) -> dict[str, tuple[str, tuple[str | int, ...]]]:
        """The tensors between tower and text."""
        return {"mm.a.fc": (f"{PROJECTOR}linear", ("text", "hidden"))}

    def layer(self) -> dict[str, Tensor]:
        return encoder_layer("hidden", "ffn")

    def prefix(self, number: int) -> str:
        return f"{TOWER}layers.{number}."

    def tower_config(self) -> dict[str, Any]:
        sizes = self.sizes()
        return encoder_config(self, sizes["hidden"], sizes["ffn"]) | {
            "model_type": f"{self.model_type}_encoder",
            "max_source_positions": sizes["positions"],
        }

    def processor(self) -> dict[str, Any]:
        sizes = self.sizes()
        if sizes["positions"] % A_SECOND:
            raise self.file.error(f"has {sizes['positions']} frames, which are no whole seconds")
        name = self.class_name.removesuffix("ForConditionalGeneration")
        return {
            "processor_class": f"{name}Processor",
            **self.marks,
            "feature_extractor": {
                "chunk_length": sizes["positions"] // A_SECOND,
                "feature_extractor_type": "WhisperFeatureExtractor",
                "feature_size": sizes["mels"],
                "return_attention_mask": False,
            },
        }


class AudioFlamingo3(Qwen2Audio):
    """Audio Flamingo 3."""

    kind = "musicflamingo"
    class_name = "AudioFlamingo3ForConditionalGeneration"
    model_type = "audioflamingo3"
    numbered = "_id"
    marks: Mapping[str, str] = MappingProxyType({"audio_token": "<sound>"})

    def joining(self) -> dict[str, tuple[str, tuple[str | int, ...]]]:
        return {
            "mm.a.mlp.1": (f"{PROJECTOR}linear_1", ("text", "hidden")),
            "mm.a.mlp.2": (f"{PROJECTOR}linear_2", ("text", "text")),
        }

    def more(self) -> dict[str, Any]:
        return {"projector_bias": True, "projector_hidden_act": "gelu"}


KNOWN = (Qwen2Audio, AudioFlamingo3)
