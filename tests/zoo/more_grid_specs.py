"""The architectures that keep an image's shape, of Cohere, Baidu and Meta, sorted by name."""

from __future__ import annotations

from tests.zoo import ernie, grid_specs, processors
from tests.zoo.media import PICTURES, TORCHVISION, VIDEOS, MediaSpec, Picture, beside, shown
from tests.zoo.mended import InTurns
from tests.zoo.processors import FIRST

ERNIE_MARK = "<|IMAGE_START|><|image@placeholder|><|IMAGE_END|>"

SPECS = (
    MediaSpec(
        "CohereCompassForConditionalGeneration",
        "North Micro Vision",
        "cohere_compass",
        {
            "text_config": {
                "model_type": "cohere_compass_text",
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "rope_parameters": {
                    "sliding_attention": {
                        "rope_type": "default",
                        "rope_theta": 10000.0,
                        "mrope_section": [6, 5, 5],
                        "mrope_interleaved": True,
                    },
                    "full_attention": None,
                },
                "logit_scale": 0.25,
                "tie_word_embeddings": True,
            },
            "vision_config": {
                "depth": 3,
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_heads": 2,
                "out_hidden_size": 192,
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": [0, 1],
            },
            "image_token_id": FIRST,
            "video_token_id": FIRST + 1,
            "vision_start_token_id": FIRST + 2,
            "vision_end_token_id": FIRST + 3,
            "tie_word_embeddings": True,
        },
        processor=processors.cohere_compass,
        cases=shown("<|VISION_START|><|IMAGE_PAD|><|VISION_END|>", PICTURES),
        reference={"model.language_model.rotary_emb": InTurns((6, 5, 5), 10000.0, 32)},
        note="compared with channels that turn by time, row and column in turns, as transformers "
        "had it at first and the checkpoint's mrope_interleaved says",
        needs=TORCHVISION,
    ),
    MediaSpec(
        "Ernie4_5_VLMoeForConditionalGeneration",
        "Ernie 4.5 VL",
        "ernie4_5_vl_moe",
        {
            "text_config": {
                "model_type": "ernie4_5_vl_moe_text",
                "moe_k": 3,
                "moe_intermediate_size": [96, 80],
                "tie_word_embeddings": True,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "mrope_section": [6, 6, 4],
                },
            },
            "vision_config": {
                "model_type": "ernie4_5_vl_moe_vision",
                "depth": 3,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_heads": 2,
            },
            "image_start_token_id": FIRST,
            "image_end_token_id": FIRST + 1,
            "image_token_id": FIRST + 2,
            "video_start_token_id": FIRST + 3,
            "video_end_token_id": FIRST + 4,
            "video_token_id": FIRST + 5,
            "tie_word_embeddings": True,
        },
        processor=ernie.processor,
        reference=grid_specs.BEHIND_VIDEOS,
        note=grid_specs.BEHIND_NOTE,
        cases=shown("<|IMAGE_START|><|image@placeholder|><|IMAGE_END|>", PICTURES),
        more=beside(
            "<|VIDEO_START|><|video@placeholder|><|VIDEO_END|>",
            VIDEOS,
            "<|IMAGE_START|><|image@placeholder|><|IMAGE_END|>",
        ),
        published=((r"^model\.(vision_model\.)", r"\1"),),
        published_config=ernie.published_config,
        options={"trust_remote_code": True},
        needs=TORCHVISION,
    ),
    MediaSpec(
        "MuseGlimmerForConditionalGeneration",
        "Muse Glimmer",
        "muse_glimmer",
        {
            "text_config": {
                "model_type": "muse_glimmer_text",
                "num_hidden_layers": 5,
                "tie_word_embeddings": False,
            },
            "vision_config": {
                "model_type": "muse_glimmer_vision",
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_hidden_layers": 5,
                "num_attention_heads": 2,
                "pos_emb_height": 8,
                "pos_emb_width": 8,
            },
            "image_token_id": FIRST,
            "video_token_id": FIRST + 1,
            "out_hidden_size": 256,
            "projector_hidden_size": 112,
        },
        processor=processors.muse_glimmer,
        note="compared with images that need no scaling, after which some pixels differ by one or "
        "two levels of 255",
        without=("video",),
        cases=shown("<|patch|>", (Picture(56, 56, 1), Picture(84, 56, 2), Picture(308, 196, 3))),
        # The host has other words for what transformers writes beside the encoder's config.
        options={"hf_overrides": {"vision_config": {"output_dim": 256, "adapter_dim": 112}}},
        needs=TORCHVISION,
    ),
)
