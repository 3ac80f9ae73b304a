"""The architectures that take images beside text, sorted by name."""

from __future__ import annotations

from typing import Any

from tests.zoo import processors
from tests.zoo.media import MediaSpec, Picture, shown
from tests.zoo.processors import FIRST, PINPOINTS, SIDE

# Two sizes in a fixed grid or in as many patches as they fill; the last is scaled down.
PICTURES = (Picture(56, 56, 1), Picture(80, 60, 2), Picture(300, 200, 3))

TORCHVISION = ("torchvision",)
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
# transformers 5 leaves a level of the vision tower out.
TOWER = ((r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model."),)
QWEN_IDS = {
    "vision_start_token_id": FIRST,
    "vision_end_token_id": FIRST + 1,
    "image_token_id": FIRST + 2,
    "video_token_id": FIRST + 3,
}
QWEN3_VISION = {
    "depth": 3,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_heads": 2,
    "out_hidden_size": 192,
    "patch_size": 16,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 1],
}
QWEN_MARK = "<|vision_start|><|image_pad|><|vision_end|>"


def _qwen_text(model_type: str, sections: tuple[int, ...], **different: Any) -> dict[str, Any]:
    """sections: pairs of a head's channels that turn by time, row and column."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sections)}
    return {"model_type": model_type, "rope_parameters": {**rope, **different}}


SPECS = (
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
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Gemma4ForConditionalGeneration",
        "Gemma 4 with images",
        "gemma4",
        {
            "text_config": {
                "model_type": "gemma4_text",
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "sliding_window": 96,  # an image has 70 tokens
                "vocab_size_per_layer_input": 1000,
                "hidden_size_per_layer_input": 32,
                "per_layer_config": {"1": {"head_dim": 64}, "3": {"head_dim": 64}},
                "use_bidirectional_attention": "vision",
            },
            "vision_config": {
                "model_type": "gemma4_vision",
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "position_embedding_size": 256,
                "default_output_length": 70,
            },
            "audio_config": None,
            "image_token_id": FIRST,
            "boi_token_id": FIRST + 1,
            "eoi_token_id": FIRST + 2,
            "video_token_id": FIRST + 6,
            "tie_word_embeddings": True,
        },
        processor=processors.gemma4,
        cases=shown("<image_soft_token>", PICTURES),
        chunk=96,
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Glm4vForConditionalGeneration",
        "GLM-4.1V",
        "glm4v",
        {
            "text_config": {
                **_qwen_text("glm4v_text", (2, 3, 3), partial_rotary_factor=0.5),
                "attention_bias": True,  # as published; transformers has it unasked
            },
            "vision_config": {
                "model_type": "glm4v_vision",
                "depth": 3,
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_heads": 2,
                "out_hidden_size": 192,
                "patch_size": 14,
                "image_size": SIDE,
            },
            "image_token_id": FIRST,
            "video_token_id": FIRST + 1,
            "image_start_token_id": FIRST + 2,
            "image_end_token_id": FIRST + 3,
            "video_start_token_id": FIRST + 4,
            "video_end_token_id": FIRST + 5,
        },
        processor=processors.glm4v,
        cases=shown("<|begin_of_image|><|image|><|end_of_image|>", PICTURES),
        needs=TORCHVISION,
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
        "InternVLForConditionalGeneration",
        "InternVL 3",
        "internvl",
        {
            "text_config": {"model_type": "qwen2"},
            "vision_config": {
                **VISION,
                "model_type": "internvl_vision",
                "image_size": [SIDE, SIDE],
                "patch_size": [14, 14],
            },
            "image_token_id": FIRST,
            "image_seq_length": 4,
        },
        processor=processors.internvl,
        cases=shown("<IMG_CONTEXT>", PICTURES),
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Lfm2VlForConditionalGeneration",
        "LFM2-VL",
        "lfm2_vl",
        {
            "text_config": {
                "model_type": "lfm2",
                "layer_types": ["conv", "full_attention", "conv"],
            },
        },
        refused="recurrent state",
        needs=TORCHVISION,
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
        needs=TORCHVISION,
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
            "image_grid_pinpoints": PINPOINTS,
        },
        processor=processors.llava_next,
        cases=shown("<image>", PICTURES),
        published=TOWER,
        needs=TORCHVISION,
    ),
    MediaSpec(
        "LlavaOnevisionForConditionalGeneration",
        "LLaVA-OneVision",
        "llava_onevision",
        {
            "text_config": {"model_type": "qwen2"},
            "vision_config": SIGLIP,
            "image_token_index": FIRST,
            "video_token_index": FIRST + 1,
            "image_grid_pinpoints": PINPOINTS,
        },
        processor=processors.llava_onevision,
        cases=shown("<image>", PICTURES),
        published=TOWER,
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Mistral3ForConditionalGeneration",
        "Mistral Small 3.1",
        "mistral3",
        {
            "text_config": {"model_type": "mistral", "sliding_window": None},
            "vision_config": {**VISION, "model_type": "pixtral", "image_size": 2 * SIDE},
            "image_token_index": FIRST,
            "tie_word_embeddings": False,
        },
        processor=processors.mistral3,
        cases=shown("[IMG]", PICTURES),
        needs=TORCHVISION,
    ),
    MediaSpec(
        "PaliGemmaForConditionalGeneration",
        "PaliGemma",
        "paligemma",
        {
            "text_config": {"model_type": "gemma"},
            "vision_config": {**SIGLIP, "projection_dim": 192},
            "projection_dim": 192,
        },
        refused="both directions",
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
        needs=TORCHVISION,
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
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Qwen3VLForConditionalGeneration",
        "Qwen3-VL",
        "qwen3_vl",
        {
            "text_config": _qwen_text("qwen3_vl_text", (6, 5, 5), mrope_interleaved=True),
            "vision_config": QWEN3_VISION,
            **QWEN_IDS,
        },
        processor=processors.qwen3_vl,
        cases=shown(QWEN_MARK, PICTURES),
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3-VL mixtures",
        "qwen3_vl_moe",
        {
            "text_config": {
                **_qwen_text("qwen3_vl_moe_text", (6, 5, 5), mrope_interleaved=True),
                # As published: transformers does the first unasked, and ignores the window.
                "norm_topk_prob": True,
                "sliding_window": None,
            },
            "vision_config": QWEN3_VISION,
            **QWEN_IDS,
        },
        transposed=r"experts\.(gate_up|down)_proj",
        processor=processors.qwen3_vl,
        cases=shown(QWEN_MARK, PICTURES),
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Qwen3_5ForConditionalGeneration",
        "Qwen3.5 with images",
        "qwen3_5",
        {"text_config": {"model_type": "qwen3_5_text"}},
        refused="recurrent state",
        needs=TORCHVISION,
    ),
    MediaSpec(
        "SmolVLMForConditionalGeneration",
        "SmolVLM",
        "smolvlm",
        {
            "text_config": LLAMA,
            "vision_config": {**VISION, "model_type": "smolvlm_vision"},
            "scale_factor": 2,
            "image_token_id": FIRST,
        },
        processor=processors.smolvlm,
        cases=shown("<image>", PICTURES),
        needs=(*TORCHVISION, "num2words"),
    ),
)
