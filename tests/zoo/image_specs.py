"""The architectures that take images beside text, sorted by name."""

from __future__ import annotations

from dataclasses import replace

from tests.zoo import (
    grid_specs,
    more_grid_specs,
    processors,
    tile_specs,
    whole_prompt_processors,
)
from tests.zoo.build import WINDOW
from tests.zoo.media import PICTURES, SOUNDS, TORCHVISION, VIDEOS, MediaSpec, beside, shown
from tests.zoo.mended import of_one_video
from tests.zoo.mistral import MINISTRAL
from tests.zoo.processors import FIRST, GEMMA3N_OWN, PINPOINTS, SIDE
from tests.zoo.tile_specs import TOWER

VISION = {**tile_specs.VISION, "image_size": SIDE, "patch_size": 14}
CLIP = {**VISION, "model_type": "clip_vision_model", "projection_dim": 64}
SIGLIP = {**VISION, "model_type": "siglip_vision_model", "vision_use_head": False}
GEMMA4_VISION = {
    "model_type": "gemma4_vision",
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "position_embedding_size": 256,
    "default_output_length": 70,
}
GEMMA4_SOUND = {
    "model_type": "gemma4_audio",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "subsampling_conv_channels": [128, 8],
    "output_proj_dims": 96,
}
# Of three frames at most, which are computed at once.
SHORT_VIDEOS = tuple(replace(video, frames=2 + video.seed % 2) for video in VIDEOS)
THREE_FRAMES = {"count": 1, "num_frames": 3}
LLAMA = {"model_type": "llama"}
# Gemma 4's, with fewer and larger heads.
GLOBAL_LAYERS = {layer: {"head_dim": 64, "num_key_value_heads": 1} for layer in "13"}
OWN = (
    MediaSpec(
        "AriaForConditionalGeneration",
        "Aria",
        "aria",
        {
            "text_config": {
                "model_type": "aria_text",
                "intermediate_size": 96,
                "moe_topk": 3,
            },
            "vision_config": {
                **VISION,
                "model_type": "idefics3_vision",
                "image_size": 980,  # transformers scales every image to it
                "patch_size": 140,
            },
            "projector_patch_to_query_dict": {49: 4},
            "image_token_index": FIRST,
        },
        processor=processors.aria,
        cases=shown("<|img|>", PICTURES),
        needs=TORCHVISION,
        # Its router is torch's product, whose bits depend on the number of rows.
        host="a replayed step differs",
        note="the host lets an image's patches see the padding of one that is no square",
    ),
    MediaSpec(
        "Blip2ForConditionalGeneration",
        "BLIP-2",
        "blip-2",
        {
            "text_config": {"model_type": "opt", "ffn_dim": 352, "word_embed_proj_dim": 192},
            "vision_config": {
                **VISION,
                "model_type": "blip_2_vision_model",
                "initializer_range": 0.02,  # of patches; at the usual 1e-10 all images are one
            },
            "qformer_config": {
                "model_type": "blip_2_qformer",
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
            },
            "num_query_tokens": 8,
            "image_token_index": FIRST,
        },
        processor=processors.blip2,
        # An image comes before the text, whatever that says; transformers needs one.
        cases=shown("", PICTURES, at_once=1)[:-1],
        options={"limit_mm_per_prompt": {"image": 1}},
    ),
    MediaSpec(
        "Cohere2VisionForConditionalGeneration",
        "Command A Vision",
        "cohere2_vision",
        {
            "text_config": {
                "model_type": "cohere2",
                "num_hidden_layers": 4,
                "tie_word_embeddings": True,
                "logit_scale": 1.0,  # transformers leaves it out where images are read too
            },
            "vision_config": SIGLIP,
            "alignment_intermediate_size": 112,
            "image_token_id": FIRST,
            "tie_word_embeddings": True,
        },
        processor=processors.cohere2_vision,
        cases=shown("<|IMG_PATCH|>", PICTURES),
        published=TOWER,
        reference={"config.text_config.sliding_window": WINDOW + 1},
        note="compared with windows one token longer, which the host has on purpose",
        needs=TORCHVISION,
    ),
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
        "Gemma3nForConditionalGeneration",
        "Gemma 3n with images",
        "gemma3n",
        {
            "text_config": {
                "model_type": "gemma3n_text",
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "intermediate_size": [352] * 4,
                "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0],
                "num_kv_shared_layers": 2,
                "vocab_size_per_layer_input": GEMMA3N_OWN,
                "hidden_size_per_layer_input": 32,
                "laurel_rank": 16,
                "tie_word_embeddings": True,
            },
            "vision_config": {
                "model_type": "gemma3n_vision",
                "model_args": {"channel_multiplier": 0.05, "msfa_output_resolution": 4},
                "vocab_offset": GEMMA3N_OWN,
                "vocab_size": 2,
            },
            "audio_config": {
                "model_type": "gemma3n_audio",
                "hidden_size": 64,
                "conf_num_attention_heads": 2,
                "conf_num_hidden_layers": 2,
                "sscp_conv_channel_size": [16, 8],
                "vocab_offset": GEMMA3N_OWN + 2,
                "vocab_size": 998 - GEMMA3N_OWN,  # all that remain
            },
            "vision_soft_tokens_per_image": 16,
            "image_token_id": GEMMA3N_OWN,
            "eoi_token_id": GEMMA3N_OWN + 1,
            "audio_token_id": GEMMA3N_OWN + 2,
            "eoa_token_id": GEMMA3N_OWN + 3,
            "boi_token_id": FIRST,
            "boa_token_id": FIRST + 1,
            "tie_word_embeddings": True,
        },
        processor=processors.gemma3n,
        cases=shown("<image_soft_token>", PICTURES),
        more=beside("<audio_soft_token>", SOUNDS[1:], "<image_soft_token>"),
        needs=(*TORCHVISION, "timm"),
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
                "sliding_window": 48,  # an image has 70 tokens
                "vocab_size_per_layer_input": 1000,
                "hidden_size_per_layer_input": 32,
                "per_layer_config": GLOBAL_LAYERS,
                "use_bidirectional_attention": "vision",
            },
            "vision_config": GEMMA4_VISION,
            "audio_config": GEMMA4_SOUND,
            "image_token_id": FIRST,
            "boi_token_id": FIRST + 1,
            "eoi_token_id": FIRST + 2,
            "audio_token_id": FIRST + 3,
            "boa_token_id": FIRST + 4,
            "eoa_token_index": FIRST + 5,
            "video_token_id": FIRST + 6,
            "tie_word_embeddings": True,
        },
        processor=processors.gemma4,
        cases=shown("<image_soft_token>", PICTURES),
        more=(
            *beside("<|video|>", SHORT_VIDEOS, "<image_soft_token>"),
            *beside("<audio_soft_token>", SOUNDS[1:], "<image_soft_token>"),
        ),
        chunk=256,
        options={"limit_mm_per_prompt": {"image": 2, "audio": 1, "video": THREE_FRAMES}},
        reference={"model.get_video_features": of_one_video},
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Gemma4UnifiedForConditionalGeneration",
        "Gemma 4 without encoders",
        "gemma4_unified",
        {
            "text_config": {
                "model_type": "gemma4_unified_text",
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "sliding_window": 96,  # an image has 70 tokens
                "per_layer_config": GLOBAL_LAYERS,
                "use_bidirectional_attention": "vision",
            },
            "vision_config": {
                "model_type": "gemma4_unified_vision",
                "mm_embed_dim": 64,
                "mm_posemb_size": 64,
                "output_proj_dims": 64,
                "num_soft_tokens": 70,  # transformers does without
            },
            "audio_config": None,
            "image_token_id": FIRST,
            "boi_token_id": FIRST + 1,
            "eoi_token_id": FIRST + 2,
            "video_token_id": FIRST + 6,
            "tie_word_embeddings": True,
        },
        processor=processors.gemma4_unified,
        cases=shown("<image_soft_token>", PICTURES),
        more=beside("<|video|>", SHORT_VIDEOS, "<image_soft_token>"),
        chunk=256,
        options={"limit_mm_per_prompt": {"image": 2, "video": THREE_FRAMES}},
        reference={"model.get_video_features": of_one_video},
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
        more=beside("<video>", VIDEOS, "<IMG_CONTEXT>"),
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
                "conv_dim": 192,
                "block_dim": 192,
                "tie_word_embeddings": True,
            },
            "vision_config": {
                **VISION,
                "model_type": "siglip2_vision_model",
                "patch_size": 16,
                "num_patches": 16,
                "vision_use_head": False,
            },
            "projector_hidden_size": 112,
            "image_token_id": FIRST,
            "tie_word_embeddings": True,
        },
        processor=processors.lfm2_vl,
        cases=shown("<image>", PICTURES),
        published=TOWER,
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Llama4ForConditionalGeneration",
        "Llama 4 with images",
        "llama4",
        {
            "text_config": {
                "model_type": "llama4_text",
                "num_hidden_layers": 4,
                "attention_chunk_size": 128,
                "floor_scale": 64,
                "intermediate_size_mlp": 352,
                "intermediate_size": 96,
                "interleave_moe_layer_step": 2,
                "num_experts_per_tok": 1,
            },
            "vision_config": {
                **VISION,
                "intermediate_size": 256,  # of the four patches of a token
                "projector_input_dim": 112,
                "projector_output_dim": 112,
                "vision_output_dim": 112,
            },
            "boi_token_index": FIRST + 1,
            "eoi_token_index": FIRST + 2,
            "image_token_index": FIRST + 3,
        },
        processor=processors.llama4,
        cases=shown("<|image|>", PICTURES),
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
        "LlavaNextVideoForConditionalGeneration",
        "LLaVA-NeXT-Video",
        "llava_next_video",
        {
            "text_config": LLAMA,
            "vision_config": {**CLIP, "patch_size": 7},  # the host divides a side by its square
            "image_token_index": FIRST,
            "video_token_index": FIRST + 1,
            "vision_feature_layer": -2,
            "image_grid_pinpoints": PINPOINTS,
        },
        processor=processors.llava_next_video,
        cases=shown("<video>", VIDEOS, at_once=1),
        published=TOWER,
        options={"limit_mm_per_prompt": {"video": 1}},
        needs=TORCHVISION,
        note="the host takes no images",
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
        more=beside("<video>", VIDEOS, "<image>"),
        published=TOWER,
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Mistral3ForConditionalGeneration",
        "Mistral Small 3.1, Ministral 3",
        "mistral3",
        {
            "text_config": {
                "model_type": "ministral3",
                "sliding_window": None,
                "rope_parameters": MINISTRAL,
            },
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
        "PaliGemma, PaliGemma 2",
        "paligemma",
        {
            "text_config": {
                "model_type": "gemma2",
                "num_hidden_layers": 4,
                "sliding_window": 512,  # as many tokens as a request may have
                "final_logit_softcapping": None,
            },
            "vision_config": SIGLIP,
            "projection_dim": 192,
            "image_token_index": FIRST,
            "tie_word_embeddings": True,
        },
        processor=whole_prompt_processors.paligemma,
        cases=shown("", PICTURES, at_once=1),
        published=TOWER,
        options={"limit_mm_per_prompt": {"image": 1}},
        whole_prompts=True,
        reference={"config.text_config._attn_implementation": "eager"},  # as EAGER
        note="compared without PaliGemma 2's cap of logits, which transformers leaves out",
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
SPECS = tuple(
    sorted(
        (*OWN, *grid_specs.SPECS, *more_grid_specs.SPECS, *tile_specs.SPECS),
        key=lambda spec: spec.name,
    )
)
