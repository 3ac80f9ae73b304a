"""Gemma 4: a tower over pictures of any shape, and one of sounds in the smaller models."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cpu_backend.gguf.architectures.tensors import Tensor
from cpu_backend.gguf.projectors.base import CHANNELS, Projector, patches_last

VISION, AUDIO = "model.vision_tower.", "model.audio_tower."
CLIPPED = tuple(f"{way}_{end}" for way in ("input", "output") for end in ("min", "max"))
# What no file says; of published checkpoints.
POOLED = 3  # patches along a side that become one token
IMAGE_TOKENS, FRAME_TOKENS = 280, 70
SOUND_TOKENS, MILLISECONDS = 750, 40  # at most; of one


def scalar(weight: Any) -> Any:
    """Without the dimension that files have to have."""
    return weight[0]


def before_softplus(weight: Any) -> Any:
    """What the softplus function makes ``weight`` of."""
    return weight + (-(-weight).exp()).log1p()


class Gemma4(Projector):
    """Gemma 4, which also hears where it is small."""

    kind, texts = "gemma4v", ("gemma4",)
    class_name = "Gemma4ForConditionalGeneration"
    model_type, text_type = "gemma4", "gemma4_text"
    marks: Mapping[str, str] = MappingProxyType(
        {
            "image_token": "<|image|>",
            "boi_token": "<|image>",
            "eoi_token": "<image|>",
            "audio_token": "<|audio|>",
            "boa_token": "<|audio>",
            "eoa_token": "<audio|>",
            "video_token": "<|video|>",
        }
    )
    hears = True

    @property
    def has_ears(self) -> bool:
        """Whether there is a tower of sounds."""
        if not self.flag("has_audio_encoder", False):
            return False
        if (kind := self.text("audio.projector_type")) != "gemma4a":
            raise self.refuse(f"hears by a projector of the kind '{kind}'")
        return True

    def sizes(self) -> dict[str, int]:
        for key in ("image_size", "projector_type"):
            self.field(f"vision.{key}")  # of no meaning, and read
        hidden = self.size("vision.embedding_length")
        sizes = {
            "hidden": hidden,
            "head": hidden // self.size("vision.attention.head_count"),
            "ffn": self.size("vision.feed_forward_length"),
            "patch": self.size("vision.patch_size"),
            "positions": self.shape_of("v.position_embd.weight", 3)[1],
            "text": self.size("vision.projection_dim"),
        }
        return sizes | self.sizes_of_sounds() if self.has_ears else sizes

    def sizes_of_sounds(self) -> dict[str, int]:
        """The same of the tower of sounds, beginning with "a"."""
        hidden = self.size("audio.embedding_length")
        first, second = (self.shape_of(f"a.conv1d.{n}.weight", 4)[0] for n in (0, 1))
        if self.size("audio.projection_dim") != self.size("vision.projection_dim"):
            raise self.file.error("makes hidden states of different widths")
        return {
            "a": hidden,
            "a twice": 2 * hidden,
            "a head": hidden // self.size("audio.attention.head_count"),
            "a ffn": self.size("audio.feed_forward_length"),
            "a first": first,
            "a second": second,
            "a mixed": second * self.size("audio.num_mel_bins") // 4,
            "a kernel": self.shape_of("a.blk.0.conv_dw.weight", 2)[1],
            "a out": self.shape_of("a.pre_encode.out.weight", 2)[0],
        }

    def outer(self) -> dict[str, Tensor]:
        tensors = {
            "v.patch_embd.weight": Tensor(
                f"{VISION}patch_embedder.input_proj.weight",
                ("hidden", CHANNELS, "patch", "patch"),
                values=patches_last,
            ),
            "v.position_embd.weight": Tensor(
                f"{VISION}patch_embedder.position_embedding_table", (2, "positions", "hidden")
            ),
            "mm.input_projection.weight": Tensor(
                "model.embed_vision.embedding_projection.weight", ("text", "hidden")
            ),
        }
        if self.standardized:
            for end in ("bias", "scale"):
                tensors[f"v.std_{end}"] = Tensor(f"{VISION}std_{end}", ("hidden",))
        return tensors | self.outer_of_sounds() if self.has_ears else tensors

    @property
    def standardized(self) -> bool:
        """Whether tokens of pictures are moved and scaled."""
        return "v.std_scale" in self.file.tensors

    def outer_of_sounds(self) -> dict[str, Tensor]:
        """The tensors of the tower of sounds outside of its layers."""
        stem = f"{AUDIO}subsample_conv_projection."
        return {
            "a.conv1d.0.weight": Tensor(f"{stem}layer0.conv.weight", ("a first", 1, 3, 3)),
            "a.conv1d.0.norm.weight": Tensor(f"{stem}layer0.norm.weight", ("a first",)),
            "a.conv1d.1.weight": Tensor(f"{stem}layer1.conv.weight", ("a second", "a first", 3, 3)),
            "a.conv1d.1.norm.weight": Tensor(f"{stem}layer1.norm.weight", ("a second",)),
            "a.input_projection.weight": Tensor(
                f"{stem}input_proj_linear.weight", ("a", "a mixed")
            ),
            "a.pre_encode.out.weight": Tensor(f"{AUDIO}output_proj.weight", ("a out", "a")),
            "a.pre_encode.out.bias": Tensor(f"{AUDIO}output_proj.bias", ("a out",)),
            "mm.a.input_projection.weight": Tensor(
                "model.embed_audio.embedding_projection.weight", ("text", "a out")
            ),
        }

    def prefix(self, number: int) -> str:
        return f"{VISION}encoder.layers.{number}."

    def layer(self) -> dict[str, Tensor]:
        square = ("hidden", "hidden")
        norms = {
            "ln1": "input_layernorm",
            "attn_post_norm": "post_attention_layernorm",
            "ln2": "pre_feedforward_layernorm",
            "ffn_post_norm": "post_feedforward_layernorm",
        }
        return {
            **{
                f"{name}.weight": Tensor(f"{own}.weight", ("hidden",))
                for name, own in norms.items()
            },
            **{
                f"attn_{part}_norm.weight": Tensor(f"self_attn.{part}_norm.weight", ("head",))
                for part in "qk"
            },
            **self.linear(
                "v.blk.0.",
                {
                    "attn_q": ("self_attn.q_proj", square),
                    "attn_k": ("self_attn.k_proj", square),
                    "attn_v": ("self_attn.v_proj", square),
                    "attn_out": ("self_attn.o_proj", square),
                    "ffn_gate": ("mlp.gate_proj", ("ffn", "hidden")),
                    "ffn_up": ("mlp.up_proj", ("ffn", "hidden")),
                    "ffn_down": ("mlp.down_proj", ("hidden", "ffn")),
                },
            ),
        }

    def linear(
        self, first: str, layers: dict[str, tuple[str, tuple[str | int, ...]]]
    ) -> dict[str, Tensor]:
        """Linear layers, and between which numbers their inputs and outputs are kept, if those of
        the block ``first`` are."""
        clipped = self.clipped(first)
        tensors = {}
        for name, (own, shape) in layers.items():
            tensors[f"{name}.weight"] = Tensor(f"{own}.linear.weight", shape)
            for end in CLIPPED if clipped else ():
                tensors[f"{name}.{end}"] = Tensor(f"{own}.{end}", (1,), values=scalar)
        return tensors

    def clipped(self, block: str) -> bool:
        """Whether linear layers keep what they are given within bounds."""
        return f"{block}attn_q.input_max" in self.file.tensors

    def blocks(self) -> list[tuple[str, str, dict[str, Tensor]]]:
        found = super().blocks()
        if self.has_ears:
            found += [
                (f"a.blk.{n}.", f"{AUDIO}layers.{n}.", self.layer_of_sounds())
                for n in range(self.count("audio.block_count"))
            ]
        return found

    def layer_of_sounds(self) -> dict[str, Tensor]:
        """The tensors of a layer of the tower of sounds."""
        square = ("a", "a")
        norms = {
            "ffn_norm": "feed_forward1.pre_layer_norm",
            "ffn_post_norm": "feed_forward1.post_layer_norm",
            "ffn_norm_1": "feed_forward2.pre_layer_norm",
            "ffn_post_norm_1": "feed_forward2.post_layer_norm",
            "attn_pre_norm": "norm_pre_attn",
            "attn_post_norm": "norm_post_attn",
            "conv_norm": "lconv1d.pre_layer_norm",
            "norm_conv": "lconv1d.conv_norm",
            "ln2": "norm_out",
        }
        return {
            **{f"{name}.weight": Tensor(f"{own}.weight", ("a",)) for name, own in norms.items()},
            "per_dim_scale.weight": Tensor(
                "self_attn.per_dim_scale", ("a head",), values=before_softplus
            ),
            "attn_k_rel.weight": Tensor("self_attn.relative_k_proj.weight", square),
            "conv_dw.weight": Tensor("lconv1d.depthwise_conv1d.weight", ("a", 1, "a kernel")),
            **self.linear(
                "a.blk.0.",
                {
                    "attn_q": ("self_attn.q_proj", square),
                    "attn_k": ("self_attn.k_proj", square),
                    "attn_v": ("self_attn.v_proj", square),
                    "attn_out": ("self_attn.post", square),
                    "ffn_up": ("feed_forward1.ffw_layer_1", ("a ffn", "a")),
                    "ffn_down": ("feed_forward1.ffw_layer_2", ("a", "a ffn")),
                    "ffn_up_1": ("feed_forward2.ffw_layer_1", ("a ffn", "a")),
                    "ffn_down_1": ("feed_forward2.ffw_layer_2", ("a", "a ffn")),
                    "conv_pw1": ("lconv1d.linear_start", ("a twice", "a")),
                    "conv_pw2": ("lconv1d.linear_end", square),
                },
            ),
        }

    def tower_config(self) -> dict[str, Any]:
        sizes = self.sizes()
        heads = self.size("vision.attention.head_count")
        return {
            "model_type": "gemma4_vision",
            "default_output_length": IMAGE_TOKENS,
            "head_dim": sizes["head"],
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": sizes["hidden"],
            "intermediate_size": sizes["ffn"],
            "num_attention_heads": heads,
            "num_hidden_layers": self.num_layers,
            "num_key_value_heads": heads,
            "patch_size": sizes["patch"],
            "pooling_kernel_size": POOLED,
            "position_embedding_size": sizes["positions"],
            "rms_norm_eps": self.number("vision.attention.layer_norm_epsilon"),
            "standardize": self.standardized,
            "use_clipped_linears": self.clipped("v.blk.0."),
        }

    def more(self) -> dict[str, Any]:
        return {"audio_config": self.sounds() if self.has_ears else None}

    def sounds(self) -> dict[str, Any]:
        """``audio_config`` of config.json."""
        sizes = self.sizes()
        return {
            "model_type": "gemma4_audio",
            "conv_kernel_size": sizes["a kernel"],
            "hidden_size": sizes["a"],
            "num_attention_heads": self.size("audio.attention.head_count"),
            "num_hidden_layers": self.count("audio.block_count"),
            "output_proj_dims": sizes["a out"],
            "rms_norm_eps": self.number("audio.attention.layer_norm_epsilon"),
            "subsampling_conv_channels": [sizes["a first"], sizes["a second"]],
            "use_clipped_linears": self.clipped("a.blk.0."),
        }

    def of_text(self, config: dict[str, Any]) -> dict[str, Any]:
        # The tokens of a picture attend to each other in the larger models, which have no inputs
        # per layer: no file says it.
        small = config.get("hidden_size_per_layer_input", 0) > 0
        both_ways = None if small else "vision"
        return super().of_text(config) | {"use_bidirectional_attention": both_ways}

    def numbers(self, ids: Mapping[str, int]) -> dict[str, int]:
        return super().numbers(ids) | {"eoa_token_index": ids[self.marks["eoa_token"]]}

    def processor(self) -> dict[str, Any]:
        shared = {
            **self.normalized(),
            "patch_size": self.size("vision.patch_size"),
            "pooling_kernel_size": POOLED,
            "resample": 3,
        }
        return {
            "processor_class": "Gemma4Processor",
            "audio_ms_per_token": MILLISECONDS,
            "audio_seq_length": SOUND_TOKENS,
            "image_seq_length": IMAGE_TOKENS,
            "feature_extractor": {"feature_extractor_type": "Gemma4AudioFeatureExtractor"},
            "image_processor": {
                **shared,
                "do_normalize": False,
                "image_processor_type": "Gemma4ImageProcessor",
                "max_soft_tokens": IMAGE_TOKENS,
            },
            "video_processor": {
                **shared,
                "max_soft_tokens": FRAME_TOKENS,
                "video_processor_type": "Gemma4VideoProcessor",
            },
        }


KNOWN = (Gemma4,)
