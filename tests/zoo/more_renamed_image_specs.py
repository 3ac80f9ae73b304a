"""More image architectures that ``transformers`` has under another name, as in
renamed_image_specs.py, sorted by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.zoo import (
    dots,
    grid_specs,
    minicpm,
    more_grid_specs,
    more_renamed_processors,
    ovis2_5,
    phi3v,
    renamed_image_specs,
)
from tests.zoo.media import (
    PICTURES,
    SOUNDS,
    TORCHVISION,
    VIDEOS,
    Case,
    MediaSpec,
    Picture,
    Shown,
    Video,
    beside,
    shown,
)
from tests.zoo.processors import FIRST
from tests.zoo.remote.minicpm_processor import PATCH, SIDE, TOKENS
from tests.zoo.tile_specs import VISION

HCX_MARK = "<|IMAGE_PAD|>"
OTHERS = {
    spec.name: spec
    for spec in (*grid_specs.SPECS, *more_grid_specs.SPECS, *renamed_image_specs.SPECS)
}
KIMI = OTHERS["KimiK25ForConditionalGeneration"]
MUSE = OTHERS["MuseGlimmerForConditionalGeneration"]
QWEN35 = OTHERS["Qwen3_5MoeForConditionalGeneration"]
MINICPM: dict[str, Any] = {
    "hidden_size": 256,  # the resampler has a head of each 128
    "num_attention_heads": 8,
    "vision_config": {**VISION, "image_size": 7 * PATCH, "patch_size": PATCH},
    "image_size": SIDE,
    "query_num": TOKENS,
}
OVIS25 = MediaSpec(
    "Ovis2_5",
    "Ovis 2.5",
    "ovis2_5",
    {
        "llm_config": {"model_type": "qwen3", "vocab_size": ovis2_5.PAD + 25},
        "vit_config": {
            **VISION,
            "num_hidden_layers": 2,
            "image_size": 7 * 16,
            "patch_size": 16,
        },
        "visual_vocab_size": 36,
    },
    processor=ovis2_5.processor,
    cases=shown(ovis2_5.IMAGE, PICTURES),
    more=beside(
        ovis2_5.VIDEO,
        (Video(56, 56, 1, 2), Video(80, 60, 2, 1), Video(300, 200, 3, 2)),
        ovis2_5.IMAGE,
    ),
    chunk=512,
    published_config=ovis2_5.published,
    options={
        **renamed_image_specs.REMOTE,
        "max_model_len": 1024,
        # The host would try one of 1792 by 1792 first.
        "limit_mm_per_prompt": {
            "image": {"count": 2, "width": 448, "height": 448},
            "video": {"count": 1, "width": 448, "height": 448, "num_frames": 2},
        },
    },
    needs=TORCHVISION,
    note="compared with Qwen 3 and an encoder in plain torch",
)


def _kimi_vl(config: dict[str, Any]) -> dict[str, Any]:
    vision = config["vision_config"]
    return {
        "model_type": "kimi_vl",
        "text_config": config["text_config"],
        "vision_config": {
            **vision,
            "model_type": "moonvit",
            "init_pos_emb_height": vision["pos_emb_height"],
            "init_pos_emb_width": vision["pos_emb_width"],
            "merge_kernel_size": [2, 2],
        },
        "media_placeholder_token_id": config["image_token_id"],
    }


def _numbered(cases: Iterable[Case]) -> tuple[Case, ...]:
    """The same whose images are marked by their number in the request."""
    return tuple(
        replace(case, marks=tuple(f"<|image_{n + 1}|>" for n in range(len(case.media))))
        for case in cases
        if isinstance(case, Shown)
    )


SPECS = (
    MediaSpec(
        "DotsOCRForCausalLM",
        "dots.ocr",
        "dots_ocr",
        {
            "vision_config": {
                "embed_dim": 64,
                "hidden_size": 192,
                "intermediate_size": 112,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "patch_size": 14,
                "rms_norm_eps": 1e-5,
            },
            "image_token_id": FIRST,
            "video_token_id": FIRST + 1,
        },
        processor=dots.processor,
        cases=shown("<|imgpad|>", PICTURES),
        needs=TORCHVISION,
        note="compared with Qwen 2 and an encoder in plain torch",
    ),
    MediaSpec(
        "HCXVisionV2ForCausalLM",
        "HyperCLOVA X SEED Think with images",
        "hyperclovax_vision_v2",
        {
            "text_config": {"model_type": "hyperclovax"},
            "vision_config": {**grid_specs.QWEN2_5_VISION, "model_type": "qwen2_5_vl_vision"},
            "image_token_id": FIRST,
            "video_token_id": FIRST + 1,
            "tie_word_embeddings": False,
        },
        processor=more_renamed_processors.hyperclovax_vision_v2,
        cases=shown(HCX_MARK, PICTURES),
        more=beside("<|VIDEO_PAD|>", VIDEOS, HCX_MARK),
        auto="HyperCLOVAXVisionV2ForConditionalGeneration",
        published=(
            (r"^model\.(vision_)?projector", "model.mm_projector"),
            (r"^model\.language_model\.(?!model\.|lm_head)", "model.language_model.model."),
            (r"^lm_head", "model.language_model.lm_head"),
        ),
        needs=TORCHVISION,
    ),
    replace(
        QWEN35,
        name="InternS2PreviewForConditionalGeneration",
        models="Intern-S2 preview",
        processor=more_renamed_processors.interns2_preview,
        auto=QWEN35.name,
        published_config=renamed_image_specs._coded("interns2_preview"),
        options=renamed_image_specs.REMOTE,
        note="compared with Qwen3.5 mixtures, which compute the same; without its time series",
    ),
    replace(
        KIMI,
        name="KimiVLForConditionalGeneration",
        models="Kimi-VL",
        processor=more_renamed_processors.kimi_vl,
        cases=shown("<|media_start|>image<|media_content|><|media_pad|><|media_end|>", PICTURES),
        published=(
            *KIMI.published,
            (r"^mm_projector", "multi_modal_projector"),
            (r"projector\.proj\.0", "projector.linear_1"),
            (r"projector\.proj\.2", "projector.linear_2"),
        ),
        published_config=_kimi_vl,
        options=renamed_image_specs.REMOTE,
        note="compared with Kimi K2.5 of transformers, which computes the same of images",
    ),
    MediaSpec(
        "MiniCPMO",
        "MiniCPM-o 2.6, 4.5",
        "minicpmo",
        {
            **MINICPM,
            "version": "2.6",
            "audio_config": {
                "d_model": 64,
                "encoder_layers": 2,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 256,  # the host takes four times d_model for granted
                "num_mel_bins": 80,
                "init_std": 0.3,  # of convolutions: smaller, sounds would hardly matter
            },
        },
        processor=minicpm.minicpmo,
        cases=shown(minicpm.IMAGE, PICTURES),
        more=(
            *beside(minicpm.VIDEO, VIDEOS, minicpm.IMAGE),
            *beside(minicpm.AUDIO, SOUNDS, minicpm.IMAGE),
        ),
        chunk=96,
        published_config=minicpm.published,
        options={**renamed_image_specs.REMOTE, "max_model_len": 1024},
        note="compared with Qwen 2, SigLIP, Whisper and what is between them in plain torch; that "
        "of 4.5 by its version, with images",
    ),
    MediaSpec(
        "MiniCPMV",
        "MiniCPM-V 2.6, 4.0, 4.5",
        "minicpmv",
        MINICPM,
        processor=minicpm.minicpmv,
        cases=shown(minicpm.IMAGE, PICTURES),
        more=beside(minicpm.VIDEO, VIDEOS, minicpm.IMAGE),
        chunk=96,
        published_config=minicpm.published,
        options=renamed_image_specs.REMOTE,
        note="compared with Qwen 3, SigLIP and a resampler in plain torch; 2.6 and 4.0 by their "
        "version, with images",
    ),
    replace(
        MUSE,
        name="MuseGlimmerForCausalLM",
        models="Muse Glimmer by its other name",
        auto=MUSE.auto or MUSE.name,
    ),
    OVIS25,
    replace(OVIS25, name="Ovis2_6ForCausalLM", models="Ovis 2.6", auto=OVIS25.name),
    replace(
        OVIS25,
        name="Ovis2_6_MoeForCausalLM",
        models="Ovis 2.6, mixtures",
        config={
            **OVIS25.config,
            "llm_config": {**OVIS25.config["llm_config"], "model_type": "qwen3_moe"},
        },
        auto=OVIS25.name,
    ),
    MediaSpec(
        "Phi3VForCausalLM",
        "Phi-3 and 3.5 vision",
        "phi3_v",
        {
            "vocab_size": 32064,  # that of published checkpoints: the host knows the image's number
            "img_processor": {
                "image_dim_out": 1024,
                "layer_idx": phi3v.LAYERS - 25,  # CLIP-L has 24 layers
                "num_img_tokens": 144,
            },
            "embd_layer": {
                "use_hd_transform": True,
                "with_learnable_separator": True,
                "hd_transform_order": "sub_glb",
            },
        },
        processor=more_renamed_processors.phi3v,
        # transformers 5 leaves a level of the encoder out.
        published=((r"img_processor\.(?!vision_model)", "img_processor.vision_model."),),
        cases=_numbered(shown("", (PICTURES[0], Picture(90, 30, 2), PICTURES[2]))),
        options={**renamed_image_specs.REMOTE, "max_model_len": 1024},
        note="compared with CLIP, Phi-3 and what is between them in plain torch",
    ),
    MediaSpec(
        "Phi4MMForCausalLM",
        "Phi-4 multimodal",
        "phi4_multimodal",
        refused="see what fills it up",
    ),
)
