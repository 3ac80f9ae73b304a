"""The architectures that keep an image's shape: as many patches as it fills, each placed by its row
and column, sorted by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.zoo import processors
from tests.zoo.build import FOR_GPUS
from tests.zoo.delta_specs import GATED_DELTA
from tests.zoo.media import PICTURES, TORCHVISION, VIDEOS, MediaSpec, Shown, Sound, beside, shown
from tests.zoo.mended import behind_all
from tests.zoo.processors import FIRST, SIDE

GLM_VISION = {
    "depth": 3,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_heads": 2,
    "out_hidden_size": 192,
    "patch_size": 14,
    "image_size": SIDE,
}
GLM_IDS = {
    "image_token_id": FIRST,
    "video_token_id": FIRST + 1,
    "image_start_token_id": FIRST + 2,
    "image_end_token_id": FIRST + 3,
    "video_start_token_id": FIRST + 4,
    "video_end_token_id": FIRST + 5,
}
GLM_MARK = "<|begin_of_image|><|image|><|end_of_image|>"
GLM_VIDEO_MARK = "<|begin_of_video|><|video|><|end_of_video|>"
GLM_VIDEOS = beside(GLM_VIDEO_MARK, VIDEOS)
EXAONE_MARK = "<vision><|image_pad|></vision>"
QWEN_IDS = {
    "vision_start_token_id": FIRST,
    "vision_end_token_id": FIRST + 1,
    "image_token_id": FIRST + 2,
    "video_token_id": FIRST + 3,
}
QWEN2_5_VISION = {
    "depth": 3,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_heads": 2,
    "out_hidden_size": 192,
    "patch_size": 14,
    "window_size": 56,
    "fullatt_block_indexes": [1],
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
# With three layers the answers mark the begin of a sound, and transformers looks for it.
NO_MARK = {"num_hidden_layers": 4}
# Behind a video, transformers places what comes by its rows and columns alone since 5.0.
BEHIND_VIDEOS = {"model.get_rope_index": behind_all}
BEHIND_NOTE = "behind a video compared with the positions of Qwen2-VL's paper"
QWEN_MARK = "<|vision_start|><|image_pad|><|vision_end|>"
QWEN_VIDEO_MARK = "<|vision_start|><|video_pad|><|vision_end|>"
QWEN_VIDEOS = beside(QWEN_VIDEO_MARK, VIDEOS, QWEN_MARK)


def _qwen_text(model_type: str, sections: tuple[int, ...], **different: Any) -> dict[str, Any]:
    """sections: pairs of a head's channels that turn by time, row and column."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sections)}
    return {"model_type": model_type, "rope_parameters": {**rope, **different}}


OMNI_IDS = {
    "vision_start_token_id": FIRST,
    "vision_end_token_id": FIRST + 1,
    "audio_start_token_id": FIRST + 5,
    "audio_end_token_id": FIRST + 6,
}
OMNI_SOUND_MARK = "<|audio_bos|><|AUDIO|><|audio_eos|>"
# A video's frames and its sound in turns; it has no mark of its own.
HEARD = Shown(
    (QWEN_VIDEO_MARK, ""),
    "What is it?",
    (VIDEOS[1], Sound(24000, 2)),
    "Answer.",
    (("use_audio_in_video", True),),
)
OMNI_MORE = (
    *beside(QWEN_VIDEO_MARK, (replace(VIDEOS[0], frames=5), VIDEOS[1]), QWEN_MARK),
    *beside(OMNI_SOUND_MARK, (Sound(32000, 2), Sound(48000, 3)), QWEN_MARK),
    HEARD,
)
OMNI_AUDIO = {
    "d_model": 64,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 112,
    "num_mel_bins": 80,
    "output_dim": 192,
    "initializer_range": 0.3,  # of convolutions: smaller, sounds would hardly matter
}


SPECS = (
    MediaSpec(
        "Exaone4_5_ForConditionalGeneration",
        "EXAONE 4.5",
        "exaone4_5",
        {
            "text_config": {"model_type": "exaone4", "num_hidden_layers": 4},
            "vision_config": {
                "model_type": "exaone4_5_vision",
                **QWEN2_5_VISION,
                "num_heads": 4,
                "num_key_value_heads": 2,
            },
            "image_token_id": FIRST + 2,
            "video_token_id": FIRST + 3,
        },
        processor=processors.exaone4_5,
        cases=shown(EXAONE_MARK, PICTURES),
        more=beside("<vision><|video_pad|></vision>", VIDEOS, EXAONE_MARK),
        selected=True,
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
            "vision_config": GLM_VISION,
            **GLM_IDS,
        },
        processor=processors.glm4v,
        cases=shown(GLM_MARK, PICTURES),
        more=GLM_VIDEOS,
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Glm4vMoeForConditionalGeneration",
        "GLM-4.5V",
        "glm4v_moe",
        {
            "text_config": {
                **_qwen_text("glm4v_moe_text", (2, 3, 3), partial_rotary_factor=0.5),
                # As published; transformers does without.
                "head_dim": 32,
                "use_qk_norm": False,
            },
            "vision_config": GLM_VISION,
            **GLM_IDS,
        },
        processor=processors.glm4v,
        cases=shown(GLM_MARK, PICTURES),
        more=GLM_VIDEOS,
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Glm5NextForConditionalGeneration",
        "GLM-5 Next",
        "glm5_next",
        {"text_config": {"model_type": "glm5_next_text", "num_key_value_heads": 6}},
        refused=FOR_GPUS,
    ),
    MediaSpec(
        "GlmOcrForConditionalGeneration",
        "GLM-OCR",
        "glm_ocr",
        {
            "text_config": {
                **_qwen_text("glm_ocr_text", (4, 6, 6), partial_rotary_factor=1.0),
                "intermediate_size": 3 * 192,  # of what joins patches too, as published
            },
            "vision_config": GLM_VISION,
            **GLM_IDS,
        },
        processor=processors.glm46v,
        cases=shown(GLM_MARK, PICTURES),
        more=GLM_VIDEOS,
        needs=TORCHVISION,
    ),
    MediaSpec(
        "PaddleOCRVLForConditionalGeneration",
        "PaddleOCR-VL",
        "paddleocr_vl",
        {
            "text_config": _qwen_text("paddleocr_vl_text", (4, 6, 6)),
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "image_size": SIDE,
                "patch_size": 14,
            },
            "image_token_id": FIRST,
            "vision_start_token_id": FIRST + 1,
            "vision_end_token_id": FIRST + 2,
            "tie_word_embeddings": False,
        },
        processor=processors.paddleocr_vl,
        cases=shown("<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>", PICTURES),
        reference={"model.visual.vision_model.embeddings.interpolation_align_corners": False},
        note="compared with positions of patches as transformers placed them before 5.19",
        needs=TORCHVISION,
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
        reference=BEHIND_VIDEOS,
        note=BEHIND_NOTE,
        cases=shown(QWEN_MARK, PICTURES),
        more=QWEN_VIDEOS,
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Qwen2_5OmniForConditionalGeneration",
        "Qwen2.5-Omni",
        "qwen2_5_omni",
        {
            "thinker_config": {
                "model_type": "qwen2_5_omni_thinker",
                "text_config": {
                    **_qwen_text("qwen2_5_omni_text", (4, 6, 6)),
                    **NO_MARK,
                },
                "vision_config": QWEN2_5_VISION,
                "audio_config": OMNI_AUDIO,
                "image_token_index": FIRST + 2,
                "video_token_index": FIRST + 3,
                "audio_token_index": FIRST + 4,
                **OMNI_IDS,
            },
            "enable_audio_output": False,
        },
        part="thinker",
        processor=processors.qwen2_5_omni,
        cases=shown(QWEN_MARK, PICTURES),
        more=OMNI_MORE,
        needs=TORCHVISION,
        note="its answers are text",
    ),
    MediaSpec(
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2.5-VL",
        "qwen2_5_vl",
        {
            "text_config": _qwen_text("qwen2_5_vl_text", (4, 6, 6)),
            "vision_config": QWEN2_5_VISION,
            **QWEN_IDS,
        },
        processor=processors.qwen2_5_vl,
        reference=BEHIND_VIDEOS,
        note=BEHIND_NOTE,
        cases=shown(QWEN_MARK, PICTURES),
        more=QWEN_VIDEOS,
        selected=True,
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Qwen3OmniMoeForConditionalGeneration",
        "Qwen3-Omni",
        "qwen3_omni_moe",
        {
            "thinker_config": {
                "model_type": "qwen3_omni_moe_thinker",
                # As published; transformers does without the ties, the size and the positions.
                "text_config": {
                    **_qwen_text("qwen3_omni_moe_text", (6, 5, 5), mrope_interleaved=True),
                    **NO_MARK,
                    "tie_word_embeddings": False,
                    "sliding_window": None,
                },
                "vision_config": {
                    **QWEN3_VISION,
                    "image_size": 128,
                    "apply_vit_abs_pos_embed": True,
                },
                "audio_config": {**OMNI_AUDIO, "downsample_hidden_size": 32},
                "image_token_id": FIRST + 2,
                "video_token_id": FIRST + 3,
                "audio_token_id": FIRST + 4,
                **OMNI_IDS,
            },
            "enable_audio_output": False,
        },
        part="thinker",
        processor=processors.qwen3_omni,
        cases=shown(QWEN_MARK, PICTURES),
        more=OMNI_MORE,
        needs=TORCHVISION,
        note="its answers are text; compared with sounds of whole "
        "frames of 10 ms, as the host completes the last one",
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
        more=QWEN_VIDEOS,
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
        more=QWEN_VIDEOS,
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Qwen3_5ForConditionalGeneration",
        "Qwen3.5 with images",
        "qwen3_5",
        {
            "text_config": {
                **_qwen_text("qwen3_5_text", (2, 1, 1), mrope_interleaved=True),
                **GATED_DELTA,
            },
            "vision_config": {**QWEN3_VISION, "deepstack_visual_indexes": []},
            **QWEN_IDS,
        },
        processor=processors.qwen3_vl,
        cases=shown(QWEN_MARK, PICTURES),
        more=QWEN_VIDEOS,
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3.5 mixtures with images",
        "qwen3_5_moe",
        {
            "text_config": {
                **_qwen_text("qwen3_5_moe_text", (2, 1, 1), mrope_interleaved=True),
                **GATED_DELTA,
            },
            "vision_config": {**QWEN3_VISION, "deepstack_visual_indexes": []},
            **QWEN_IDS,
        },
        processor=processors.qwen3_vl,
        cases=shown(QWEN_MARK, PICTURES),
        more=QWEN_VIDEOS,
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Qwen4ExpForConditionalGeneration",
        "Qwen4 preview with images",
        "qwen4_exp",
        {"text_config": {"model_type": "qwen4_exp_text"}},
        refused=FOR_GPUS,
    ),
)
