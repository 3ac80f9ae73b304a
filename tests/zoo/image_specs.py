"""The architectures that take images beside text, sorted by name."""

from __future__ import annotations

from tests.zoo import (
    gemma_specs,
    grid_specs,
    more_grid_specs,
    processors,
    tile_specs,
    whole_prompt_processors,
)
from tests.zoo.build import WINDOW
from tests.zoo.media import PICTURES, TORCHVISION, VIDEOS, MediaSpec, beside, shown
from tests.zoo.mistral import MINISTRAL
from tests.zoo.processors import FIRST, PINPOINTS, SIDE
from tests.zoo.tile_specs import SIGLIP, TOWER

VISION = {**tile_specs.VISION, "image_size": SIDE, "patch_size": 14}
CLIP = {**VISION, "model_type": "clip_vision_model", "projection_dim": 64}
LLAMA = {"model_type": "llama"}
OWN = (
    MediaSpec(
        "AriaForConditionalGeneration",
        "Aria",
        "aria",
        {"text_config": {"model_type": "aria_text"}},
        refused="padding of one that is no square",
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
        (*OWN, *gemma_specs.SPECS, *grid_specs.SPECS, *more_grid_specs.SPECS, *tile_specs.SPECS),
        key=lambda spec: spec.name,
    )
)
