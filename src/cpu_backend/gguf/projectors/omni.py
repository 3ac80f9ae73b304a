"""Qwen 2.5 Omni: the tower of Qwen 2.5 VL, and Whisper's encoder over sounds of any length
(https://arxiv.org/abs/2503.20215).  Its answers are text."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cpu_backend.gguf.architectures.tensors import Tensor
from cpu_backend.gguf.projectors.base import with_biases
from cpu_backend.gguf.projectors.qwen import Qwen25Vl
from cpu_backend.gguf.projectors.whisper import encoder_config, encoder_layer

EARS = "thinker.audio_tower."
# What no file says; of published checkpoints.
CHUNKS = 100  # twice as many frames of a sound see each other
LONGEST = 300  # seconds


class Qwen25Omni(Qwen25Vl):
    """The part that sees, hears and thinks; files have none that speaks."""

    kind = "qwen2.5o"
    class_name = "Qwen2_5OmniModel"
    model_type, text_type = "qwen2_5_omni", "qwen2_5_omni_text"
    processor_class = "Qwen2_5OmniProcessor"
    tower = "thinker.visual."
    text_weights, text_root = "thinker.model.", "thinker."
    hears = True
    marks: Mapping[str, str] = MappingProxyType(
        {
            "image_token": "<|IMAGE|>",
            "video_token": "<|VIDEO|>",
            "audio_token": "<|AUDIO|>",
            "vision_bos_token": "<|vision_bos|>",
            "vision_eos_token": "<|vision_eos|>",
            "audio_bos_token": "<|audio_bos|>",
            "audio_eos_token": "<|audio_eos|>",
        }
    )

    def sizes(self) -> dict[str, int]:
        if not self.flag("has_audio_encoder", False):
            raise self.refuse("holds no tower of sounds")
        if (width := self.size("audio.projection_dim")) != self.width:
            raise self.file.error(f"makes hidden states of {width} and {self.width} channels")
        return super().sizes() | {
            "a": self.size("audio.embedding_length"),
            "a ffn": self.size("audio.feed_forward_length"),
            "mels": self.size("audio.num_mel_bins"),
        }

    def outer(self) -> dict[str, Tensor]:
        return super().outer() | with_biases(
            {
                "a.conv1d.1": (f"{EARS}conv1", ("a", "mels", 3)),
                "a.conv1d.2": (f"{EARS}conv2", ("a", "a", 3)),
                "a.post_ln": (f"{EARS}ln_post", ("a",)),
                "mm.a.fc": (f"{EARS}proj", ("text", "a")),
            }
        )

    def blocks(self) -> list[tuple[str, str, dict[str, Tensor]]]:
        layer = encoder_layer("a", "a ffn")
        return super().blocks() + [
            (f"a.blk.{n}.", f"{EARS}layers.{n}.", layer)
            for n in range(self.count("audio.block_count"))
        ]

    def ignored(self, name: str) -> bool:
        return name == "a.position_embd.weight"  # waves, which are computed

    def unused_weights(self) -> dict[str, tuple[int, ...]]:
        return {f"{EARS}audio_bos_eos_token.weight": (2, self.width)}

    def tower_config(self) -> dict[str, Any]:
        config = super().tower_config() | {"model_type": "qwen2_5_omni_vision_encoder"}
        del config["tokens_per_second"]
        return config

    def more(self) -> dict[str, Any]:
        sizes = self.sizes()
        ears = encoder_config(self, sizes["a"], sizes["a ffn"]) | {
            "model_type": "qwen2_5_omni_audio_encoder",
            "n_window": CHUNKS,
            "output_dim": self.width,
        }
        return super().more() | {"audio_config": ears}

    def numbers(self, ids: Mapping[str, int]) -> dict[str, int]:
        names = {"bos": "start", "eos": "end"}
        numbers = {}
        for mark, token in self.marks.items():
            what, _, end = mark.removesuffix("_token").partition("_")
            name = f"{what}_{names[end]}_token_id" if end else f"{what}_token_index"
            numbers[name] = ids[token]
        return numbers

    def whole(self, config: dict[str, Any]) -> dict[str, Any]:
        outside = ("architectures", "model_type", "quantization_config", "transformers_version")
        inside = {name: value for name, value in config.items() if name not in outside}
        inside |= {"model_type": "qwen2_5_omni_thinker"}
        rest = {name: config[name] for name in (*outside, "torch_dtype", "tie_word_embeddings")}
        return rest | {"enable_audio_output": False, "thinker_config": inside}

    def processor(self) -> dict[str, Any]:
        return super().processor() | {
            "feature_extractor": {
                "chunk_length": LONGEST,
                "feature_extractor_type": "WhisperFeatureExtractor",
                "feature_size": self.size("audio.num_mel_bins"),
            }
        }


KNOWN = (Qwen25Omni,)
