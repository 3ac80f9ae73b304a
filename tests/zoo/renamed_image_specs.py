"""Image architectures that ``transformers`` has under another name, as renamed_specs.py has those
of text: weights and config are written as published checkpoints have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from tests.zoo import grid_specs, latents, mistral, renamed_processors
from tests.zoo.build import BASE
from tests.zoo.media import PICTURES, TORCHVISION, VIDEOS, Chunk, MediaSpec, beside, drawn, shown
from tests.zoo.newer_specs import NEEDS
from tests.zoo.processors import FIRST, QWEN, SIDE
from tests.zoo.renamed_processors import OVIS_ATOM

# Configs whose class comes with the checkpoint.
REMOTE = {"trust_remote_code": True}
INTERN_VIT: dict[str, Any] = {
    "model_type": "internvl_vision",
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "attention_bias": True,
    "image_size": [SIDE, SIDE],
    "patch_size": [14, 14],
}
INTERN_NAMES = (
    (r"^(model\.)?vision_tower\.", "vision_model."),
    (r"^model\.language_model\.", "language_model.model."),
    (r"^lm_head", "language_model.lm_head"),
    (r"^(model\.)?multi_modal_projector\.layer_norm", "mlp1.0"),
    (r"^(model\.)?multi_modal_projector\.linear_1", "mlp1.1"),
    (r"^(model\.)?multi_modal_projector\.linear_2", "mlp1.3"),
    (r"embeddings\.cls_token", "embeddings.class_embedding"),
    (r"embeddings\.position_embeddings", "embeddings.position_embedding"),
    (r"embeddings\.patch_embeddings\.projection", "embeddings.patch_embedding"),
    (r"^vision_model\.encoder\.layer\.", "vision_model.encoder.layers."),
    (r"attention\.q_proj", "attn.qkv|0"),
    (r"attention\.k_proj", "attn.qkv|1"),
    (r"attention\.v_proj", "attn.qkv|2"),
    (r"attention\.projection_layer", "attn.proj"),
    (r"attention\.([qk]_norm)", r"attn.\1"),
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"lambda_([12])", r"ls\1"),
)


TRUNK = r"^visual_tokenizer\.backbone\.trunk\.(.*)"
OVIS_NAMES = (
    (r"^(model\.)?language_model\.(model\.)?", "llm.model."),
    (r"^lm_head", "llm.lm_head"),
    (r"^model\.visual_embeddings_table", "vte"),
    (r"^model\.vision_tower\.head_linear", "visual_tokenizer.head.0"),
    (r"^model\.vision_tower\.head_norm", "visual_tokenizer.head.1"),
    (r"^model\.vision_tower\.transformer", "visual_tokenizer.backbone"),
    (r"backbone\.encoder\.layers", "backbone.trunk.blocks"),
    (r"backbone\.rms_norm", "backbone.trunk.post_trunk_norm"),
    (r"embeddings\.patch_embedding", "preprocessor.patchifier.proj"),
    (r"embeddings\.rms_norm", "preprocessor.patchifier.norm"),
    (r"embeddings\.position_embedding\.weight", "preprocessor.pos_embed"),
    (TRUNK + r"attention\.q_proj", r"visual_tokenizer.backbone.trunk.\1attn.qkv|0"),
    (TRUNK + r"attention\.k_proj", r"visual_tokenizer.backbone.trunk.\1attn.qkv|1"),
    (TRUNK + r"attention\.v_proj", r"visual_tokenizer.backbone.trunk.\1attn.qkv|2"),
    (r"attention\.out_proj", "attn.proj"),
    (r"ffn\.gate_proj", "mlp.fc1"),
    (r"ffn\.up_proj", "mlp.fc3"),
    (r"ffn\.down_proj", "mlp.fc2"),
    (r"rms_norm([12])", r"norm_\1"),
)
CODE = {"AutoConfig": "config_code.Config"}
# Words for a car's places, which the host puts behind those of the tokenizer; the last ones here.
PLACES = range(FIRST + len(QWEN) + 256, FIRST + len(QWEN) + 280)


def _intern_chat(model_type: str, **different: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """In OpenGVLab's words."""

    def published(config: dict[str, Any]) -> dict[str, Any]:
        vision = config["vision_config"]
        return {
            "model_type": model_type,
            "auto_map": CODE,
            "llm_config": config["text_config"],
            "vision_config": {
                **vision,
                "model_type": "intern_vit_6b",
                "image_size": SIDE,
                "patch_size": 14,
                "qkv_bias": vision["attention_bias"],
                "qk_normalization": vision["use_qk_norm"],
                "initializer_factor": 1.0,
            },
            "downsample_ratio": 0.5,
            "dynamic_image_size": True,
            "force_image_size": SIDE,
            "max_dynamic_patch": 4,
            "min_dynamic_patch": 1,
            "ps_version": "v2",
            "select_layer": -1,
            "use_thumbnail": True,
            **different,
        }

    return published


def _lighton(config: dict[str, Any]) -> dict[str, Any]:
    """As Mistral 3 with another text model."""
    return {
        **config,
        "model_type": "mistral3",
        "image_token_index": config["image_token_id"],
        "projector_hidden_act": "gelu",
        "multimodal_projector_bias": False,
        "vision_feature_layer": -1,
    }


def _ovis(config: dict[str, Any]) -> dict[str, Any]:
    vision = config["vision_config"]
    tokenizer = {
        "model_type": "aimv2_visual_tokenizer",
        "backbone_config": {**vision, "model_type": "aimv2"},
        "hidden_stride": vision["hidden_stride"],
        "vocab_size": vision["vocab_size"],
        "tokenize_function": vision["tokenize_function"],
    }
    return {
        "model_type": "ovis",
        "llm_config": config["text_config"],
        "visual_tokenizer_config": tokenizer,
        "hidden_size": config["text_config"]["hidden_size"],
    }


def _coded(model_type: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The same with a class that comes with the checkpoint."""
    return lambda config: {**config, "model_type": model_type, "auto_map": CODE}


def _opencua(config: dict[str, Any]) -> dict[str, Any]:
    """Its text's is Qwen 2, which knows no rows and columns."""
    text = {**config["text_config"], "model_type": "qwen2"}
    text["rope_parameters"] = {**text["rope_parameters"]}
    del text["rope_parameters"]["mrope_section"]
    return {**_coded("opencua")(config), "text_config": text}


def _alpamayo(config: dict[str, Any]) -> dict[str, Any]:
    """Around Qwen3-VL's."""
    return {
        "model_type": "alpamayo2_super",
        "vlm_config": config,
        "traj_ids": {"history_id0": PLACES.start, "future_id0": PLACES.start + 8},
        "history_vocab_size": 8,
        "future_vocab_size": len(PLACES) - 8,
        "min_pixels": None,
        "max_pixels": None,
    }


def _without_places(project: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Any:
    """Scores of all words before those of places, which are never chosen."""
    return project(x)[..., : PLACES.start]


def _of_text(_: Any, ids: torch.Tensor, **media: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of all tokens one after the other, not by an image's rows and columns."""
    positions = torch.arange(ids.shape[1]).expand(3, len(ids), -1)
    return positions, torch.zeros(len(ids), 1, dtype=torch.long)


INTERNVL = MediaSpec(
    "InternVLChatModel",
    "InternVL 2, 2.5 and 3 as first published",
    "internvl",
    {
        "text_config": {"model_type": "qwen2"},
        "vision_config": INTERN_VIT,
        "image_token_id": FIRST,
        "image_seq_length": 4,
    },
    processor=renamed_processors.internvl_chat,
    cases=shown("<image>", PICTURES),
    auto="InternVLForConditionalGeneration",
    published=INTERN_NAMES,
    published_config=_intern_chat("internvl_chat"),
    options=REMOTE,
    needs=TORCHVISION,
    note="compared with InternVL of transformers, which computes the same",
)
OMNI = next(spec for spec in grid_specs.SPECS if spec.name == "Qwen2_5OmniForConditionalGeneration")

QWEN3 = next(spec for spec in grid_specs.SPECS if spec.name == "Qwen3VLForConditionalGeneration")

SPECS = (
    replace(
        QWEN3,
        name="Alpamayo2Super",
        models="Alpamayo 2 Super",
        config={
            **QWEN3.config,
            "text_config": {**QWEN3.config["text_config"], "vocab_size": PLACES.stop},
        },
        more=(),
        auto=QWEN3.name,
        published=((r"^", "vlm."),),
        published_config=_alpamayo,
        reference={"lm_head.forward": _without_places},
        needs=(*TORCHVISION, *NEEDS),
        note="compared with Qwen3-VL, which computes the same but for words of places, which are "
        "never chosen",
    ),
    replace(
        INTERNVL,
        name="H2OVLChatModel",
        models="H2OVL Mississippi",
        config={**INTERNVL.config, "text_config": {"model_type": "mistral"}},
        processor=renamed_processors.h2ovl_chat,
        published_config=_intern_chat("h2ovl_chat", max_dynamic_patch=6, use_msac=True),
        note="compared with InternVL of transformers, which computes the same of tiles that the "
        "host cuts",
    ),
    replace(
        INTERNVL,
        name="InternS1ForConditionalGeneration",
        models="Intern-S1",
        processor=renamed_processors.interns1,
        cases=shown("<IMG_CONTEXT>", PICTURES),
        more=beside("<video>", VIDEOS, "<IMG_CONTEXT>"),
        published=(),
        published_config=_coded("interns1"),
    ),
    INTERNVL,
    MediaSpec(
        "KimiK25ForConditionalGeneration",
        "Kimi K2.5, K2.6",
        "kimi_k25",
        {
            "text_config": {
                "model_type": "deepseek_v3",
                **latents.ODD_LATENT,
                **latents.GROUPED,
                **latents.YARN,
            },
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "pos_emb_height": 4,
                "pos_emb_width": 4,
            },
            "projection_hidden_size": 64,
            "image_token_id": FIRST,
            "vision_start_token_id": FIRST + 1,
            "vision_end_token_id": FIRST + 3,
            "video_token_id": FIRST + 4,
            "tie_word_embeddings": False,
        },
        processor=renamed_processors.kimi_k25,
        cases=shown(
            "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>",
            [Chunk(picture.width, picture.height, picture.seed) for picture in PICTURES],
        ),
        auto="Kimi_K25ForConditionalGeneration",
        # transformers 5 writes these otherwise than it read them.
        published=(
            (r"^language_model\.model\.blocks", "language_model.model.layers"),
            (r"^model\.mm_projector", "mm_projector"),
            (r"^vision_tower\.encoder\.patch_embed", "vision_tower.patch_embed"),
        ),
        options={"limit_mm_per_prompt": {"vision_chunk": 2}},
        needs=TORCHVISION,
    ),
    MediaSpec(
        "LightOnOCRForConditionalGeneration",
        "LightOnOCR",
        "lighton_ocr",
        {
            "text_config": {"model_type": "qwen3", "sliding_window": None},
            "vision_config": {
                "model_type": "pixtral",
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "image_size": 2 * SIDE,
                "patch_size": 14,
            },
            "image_token_id": FIRST,
        },
        processor=renamed_processors.lighton_ocr,
        cases=shown("<|image_pad|>", PICTURES),
        auto="LightOnOcrForConditionalGeneration",
        published_config=_lighton,
        needs=TORCHVISION,
        note="compared with LightOnOCR of transformers, by a config as first published",
    ),
    MediaSpec(
        "OpenCUAForConditionalGeneration",
        "OpenCUA",
        "qwen2_5_vl",
        {
            "text_config": grid_specs._qwen_text("qwen2_5_vl_text", (4, 6, 6)),
            "vision_config": grid_specs.QWEN2_5_VISION,
            "image_token_id": FIRST,
            "video_token_id": FIRST + 1,
        },
        processor=renamed_processors.opencua,
        cases=shown("<|media_placeholder|>", PICTURES),
        auto="Qwen2_5_VLForConditionalGeneration",
        published_config=_opencua,
        reference={"model.get_rope_index": _of_text},
        options=REMOTE,
        needs=TORCHVISION,
        note="compared with Qwen2.5-VL, which computes the same but for positions",
    ),
    MediaSpec(
        "Ovis",
        "Ovis 2",
        "ovis2",
        {
            "text_config": {"model_type": "qwen2"},
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "image_size": SIDE,
                "patch_size": 14,
                "hidden_stride": 2,
                "vocab_size": 105,
            },
            "image_token_id": OVIS_ATOM,
            "visual_indicator_token_ids": list(range(OVIS_ATOM + 1, OVIS_ATOM + 6)),
            "tie_word_embeddings": False,
        },
        processor=renamed_processors.ovis,
        # Two images of unlike tiles in a request, neither of which was cut before.
        cases=shown("<image>", (PICTURES[0], PICTURES[2], PICTURES[1])),
        options={"mm_processor_cache_gb": 0},
        auto="Ovis2ForConditionalGeneration",
        published=OVIS_NAMES,
        batched=r"pos_embed$",
        published_config=_ovis,
        reference={"model.vision_tower.transformer.rms_norm": torch.nn.Identity()},
        needs=TORCHVISION,
        note="compared without the norm behind the vision tower, which published code skips too",
    ),
    MediaSpec(
        "PixtralForConditionalGeneration",
        "Pixtral and Mistral Small 3.1 in Mistral's format",
        "mistral3",
        {
            "text_config": {"model_type": "mistral", "sliding_window": None},
            "vision_config": {
                name: mistral.VISION[name]
                for name in (
                    "hidden_size",
                    "image_size",
                    "intermediate_size",
                    "num_attention_heads",
                    "num_hidden_layers",
                    "patch_size",
                )
            }
            | {"model_type": "pixtral", "hidden_act": "silu"},
            "image_token_index": mistral.IMAGE,
        },
        processor=mistral.pixtral,
        cases=drawn(mistral.picture_tokens, PICTURES),
        auto="Mistral3ForConditionalGeneration",
        published=mistral.PIXTRAL_NAMES,
        in_pairs=(r"attention\.w[qk]", BASE["head_dim"]),
        options=mistral.OPTIONS,
        needs=TORCHVISION,
        note="compared with Mistral 3, which computes the same",
    ),
    replace(
        OMNI,
        name="Qwen2_5OmniModel",
        models="Qwen2.5-Omni by its other name",
        auto="Qwen2_5OmniForConditionalGeneration",
    ),
    replace(
        INTERNVL,
        name="SkyworkR1VChatModel",
        models="Skywork R1V",
        config={
            **INTERNVL.config,
            "vision_config": {
                **INTERN_VIT,
                "attention_bias": False,
                "norm_type": "rms_norm",
                "use_qk_norm": True,
            },
        },
        processor=renamed_processors.skywork_chat,
        published_config=_intern_chat("skywork_chat"),
    ),
)
