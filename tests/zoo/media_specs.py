"""The architectures that take images or sounds beside text, sorted by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.zoo import processors
from tests.zoo.build import Spec
from tests.zoo.media import Case, Picture, Sound, heard, shown
from tests.zoo.processors import FIRST, SIDE


@dataclass(frozen=True)
class MediaSpec(Spec):
    """processor: leaves the model's in a folder; cases: the requests to compare.

    fixed: the host feeds its encoder a prompt at once, and keeps none of it in the prefix cache.
    """

    auto: str = ""
    processor: Callable[[Path], Any] = processors.llava
    cases: tuple[Case, ...] = ()
    fixed: bool = False


# Two sizes in a fixed grid or in as many patches as they fill; the last is scaled down.
PICTURES = (Picture(56, 56, 1), Picture(80, 60, 2), Picture(300, 200, 3))
SOUNDS = (Sound(8000, 1), Sound(30000, 2), Sound(47999, 3))  # of at most three seconds

TORCHVISION = {"needs": "torchvision"}
VISION = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": 14,
}
CLIP = {**VISION, "model_type": "clip_vision_model", "projection_dim": 64}
SIGLIP = {**VISION, "model_type": "siglip_vision_model", "vision_use_head": False}
LLAMA = {"model_type": "llama"}
# transformers 5 leaves a level of the vision tower out, and has one too many in Qwen2-Audio.
TOWER = ((r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model."),)
MODEL = ((r"\.model\.model\.", ".model."),)
QWEN_IDS = {
    "vision_start_token_id": FIRST,
    "vision_end_token_id": FIRST + 1,
    "image_token_id": FIRST + 2,
    "video_token_id": FIRST + 3,
}
QWEN_MARK = "<|vision_start|><|image_pad|><|vision_end|>"


def _qwen_text(model_type: str, sections: tuple[int, ...], **different: Any) -> dict[str, Any]:
    """sections: pairs of a head's channels that turn by time, row and column."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sections)}
    return {"model_type": model_type, "rope_parameters": {**rope, **different}}


IMAGES = (
    MediaSpec(
        "Gemma3ForConditionalGeneration",
        "Gemma 3 with images",
        "gemma3",
        {
            "text_config": {
                "model_type": "gemma3_text",
                "num_hidden_layers": 4,
                "query_pre_attn_scalar": 48,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            "vision_config": SIGLIP,
            "mm_tokens_per_image": 16,
            "image_token_index": FIRST,
            "boi_token_index": FIRST + 1,
            "eoi_token_index": FIRST + 2,
            "tie_word_embeddings": True,
        },
        processor=processors.gemma3,
        cases=shown("<start_of_image>", PICTURES),
        published=TOWER,
        selected=True,
        **TORCHVISION,
    ),
    MediaSpec(
        "Idefics3ForConditionalGeneration",
        "Idefics 3",
        "idefics3",
        {
            "text_config": LLAMA,
            "vision_config": {**VISION, "model_type": "idefics3_vision"},
            "scale_factor": 2,
            "image_token_id": FIRST,
        },
        processor=processors.idefics3,
        cases=shown("<image>", PICTURES),
        selected=True,
    ),
    MediaSpec(
        "LlavaForConditionalGeneration",
        "LLaVA 1.5",
        "llava",
        {
            "text_config": LLAMA,
            "vision_config": CLIP,
            "image_token_index": FIRST,
            "vision_feature_layer": -2,
            "image_seq_length": 16,
        },
        processor=processors.llava,
        cases=shown("<image>", PICTURES),
        published=TOWER,
        **TORCHVISION,
    ),
    MediaSpec(
        "LlavaNextForConditionalGeneration",
        "LLaVA-NeXT, LLaVA 1.6",
        "llava_next",
        {
            "text_config": LLAMA,
            "vision_config": CLIP,
            "image_token_index": FIRST,
            "vision_feature_layer": -2,
            "image_seq_length": 16,
            "image_grid_pinpoints": [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]],
        },
        processor=processors.llava_next,
        cases=shown("<image>", PICTURES),
        published=TOWER,
        **TORCHVISION,
    ),
    MediaSpec(
        "PaliGemmaForConditionalGeneration",
        "PaliGemma",
        "paligemma",
        {
            "text_config": {"model_type": "gemma"},
            "vision_config": {**SIGLIP, "projection_dim": 192},
            "projection_dim": 192,
            "image_token_index": FIRST,
            "tie_word_embeddings": True,
        },
        processor=processors.paligemma,
        cases=shown("", PICTURES, at_once=1),
        published=TOWER,
    ),
    MediaSpec(
        "Qwen2VLForConditionalGeneration",
        "Qwen2-VL",
        "qwen2_vl",
        {
            "text_config": _qwen_text("qwen2_vl_text", (4, 6, 6)),
            "vision_config": {
                "depth": 3,
                "embed_dim": 64,
                "hidden_size": 192,
                "num_heads": 2,
                "mlp_ratio": 2,
                "patch_size": 14,
            },
            **QWEN_IDS,
        },
        processor=processors.qwen2_vl,
        cases=shown(QWEN_MARK, PICTURES),
        **TORCHVISION,
    ),
    MediaSpec(
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2.5-VL",
        "qwen2_5_vl",
        {
            "text_config": _qwen_text("qwen2_5_vl_text", (4, 6, 6)),
            "vision_config": {
                "depth": 3,
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_heads": 2,
                "out_hidden_size": 192,
                "patch_size": 14,
                "window_size": 56,
                "fullatt_block_indexes": [1],
            },
            **QWEN_IDS,
        },
        processor=processors.qwen2_5_vl,
        cases=shown(QWEN_MARK, PICTURES),
        selected=True,
        **TORCHVISION,
    ),
    MediaSpec(
        "Qwen3VLForConditionalGeneration",
        "Qwen3-VL",
        "qwen3_vl",
        {
            "text_config": _qwen_text("qwen3_vl_text", (6, 5, 5), mrope_interleaved=True),
            "vision_config": {
                "depth": 3,
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_heads": 2,
                "out_hidden_size": 192,
                "patch_size": 16,
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": [0, 1],
            },
            **QWEN_IDS,
        },
        processor=processors.qwen3_vl,
        cases=shown(QWEN_MARK, PICTURES),
        **TORCHVISION,
    ),
)

AUDIO = (
    MediaSpec(
        "Qwen2AudioForConditionalGeneration",
        "Qwen2-Audio",
        "qwen2_audio",
        {
            "text_config": {"model_type": "qwen2"},
            "audio_config": {
                "model_type": "qwen2_audio_encoder",
                "d_model": 64,
                "encoder_layers": 2,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 112,
                "num_mel_bins": 80,
                "max_source_positions": 1500,
            },
            "audio_token_index": FIRST,
        },
        processor=processors.qwen2_audio,
        cases=shown("Audio 1: <|audio_bos|><|AUDIO|><|audio_eos|>", SOUNDS),
        published=MODEL,
    ),
    MediaSpec(
        "WhisperForConditionalGeneration",
        "Whisper",
        "whisper",
        {
            "d_model": 192,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 6,
            "decoder_attention_heads": 6,
            "encoder_ffn_dim": 352,
            "decoder_ffn_dim": 352,
            "max_source_positions": 150,
            "max_target_positions": 512,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "pad_token_id": 5,
            "decoder_start_token_id": 1,
            "tie_word_embeddings": True,
        },
        processor=processors.whisper,
        cases=heard(1, SOUNDS),
        fixed=True,
        selected=True,
    ),
)
