"""Gemma models that take images, and what else they do, beside text, sorted by name."""

from __future__ import annotations

from dataclasses import replace

from tests.zoo import gemma_processors
from tests.zoo.gemma_processors import GEMMA3N_OWN
from tests.zoo.media import PICTURES, SOUNDS, TORCHVISION, VIDEOS, MediaSpec, beside, shown
from tests.zoo.mended import of_one_video
from tests.zoo.processors import FIRST
from tests.zoo.tile_specs import SIGLIP, TOWER

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
GEMMA4_IDS = {
    "image_token_id": FIRST,
    "boi_token_id": FIRST + 1,
    "eoi_token_id": FIRST + 2,
    "audio_token_id": FIRST + 3,
    "boa_token_id": FIRST + 4,
    "eoa_token_index": FIRST + 5,
    "video_token_id": FIRST + 6,
}
# Of three frames at most, which are computed at once.
SHORT_VIDEOS = tuple(replace(video, frames=2 + video.seed % 2) for video in VIDEOS)
GEMMA4_MORE = (
    *beside("<|video|>", SHORT_VIDEOS, "<|image|>"),
    *beside("<|audio|>", SOUNDS[1:], "<|image|>"),
)
GEMMA4_OPTIONS = {
    "limit_mm_per_prompt": {"image": 2, "audio": 1, "video": {"count": 1, "num_frames": 3}}
}
# Gemma 4's, with fewer and larger heads.
GLOBAL_LAYERS = {layer: {"head_dim": 64, "num_key_value_heads": 1} for layer in "13"}
SPECS = (
    MediaSpec(
        "DiffusionGemmaForBlockDiffusion",
        "DiffusionGemma",
        "diffusion_gemma",
        {"text_config": {"model_type": "diffusion_gemma_text"}},
        refused="for its V2 model runner alone",
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
        processor=gemma_processors.gemma3,
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
        processor=gemma_processors.gemma3n,
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
            **GEMMA4_IDS,
            "tie_word_embeddings": True,
        },
        processor=gemma_processors.gemma4,
        cases=shown("<|image|>", PICTURES),
        more=GEMMA4_MORE,
        chunk=256,
        options=GEMMA4_OPTIONS,
        reference={"model.get_video_features": of_one_video},
        selected=True,
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
            "audio_config": {"model_type": "gemma4_unified_audio"},
            **GEMMA4_IDS,
            "tie_word_embeddings": True,
        },
        processor=gemma_processors.gemma4_unified,
        cases=shown("<|image|>", PICTURES),
        more=GEMMA4_MORE,
        chunk=256,
        options=GEMMA4_OPTIONS,
        reference={"model.get_video_features": of_one_video},
        needs=TORCHVISION,
    ),
)
