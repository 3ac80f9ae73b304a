"""The architectures that cut an image into tiles beside a view of the whole, sorted by name."""

from __future__ import annotations

from tests.zoo import tile_processors
from tests.zoo.delta_specs import GATED_DELTA
from tests.zoo.media import PICTURES, TORCHVISION, VIDEOS, MediaSpec, beside, shown
from tests.zoo.processors import FIRST, SIDE

VISION = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "patch_size": 8,
}
# transformers 5 leaves a level of the vision tower out.
TOWER = ((r"^((model\.)?vision_tower\.)(?!vision_model)", r"\1vision_model."),)
SIGLIP = {
    **VISION,
    "model_type": "siglip_vision_model",
    "image_size": SIDE,
    "patch_size": 14,
    "vision_use_head": False,
}
MINICPM = {
    "text_config": {
        "model_type": "qwen3_5_text",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        **GATED_DELTA,
    },
    "vision_config": {**VISION, "image_size": 128},
    "insert_layer_id": 1,
    "image_token_id": FIRST,
    "video_token_id": FIRST + 1,
}
SPECS = (
    MediaSpec(
        "Granite4VisionForConditionalGeneration",
        "Granite 4 Vision",
        "granite4_vision",
        {
            "text_config": {
                "model_type": "granite4_vision_text",
                "num_hidden_layers": 6,
                "embedding_multiplier": 12.0,
                "attention_multiplier": 0.15,
                "residual_multiplier": 0.6,
                "logits_scaling": 4.0,
            },
            "vision_config": {
                **VISION,
                "model_type": "siglip_vision_model",
                "hidden_size": 128,  # the joining layers have heads of 64
                "image_size": 64,
                "vision_use_head": False,
            },
            "image_token_index": FIRST,
            "vision_feature_select_strategy": "full",
            "image_grid_pinpoints": [[64, 128], [128, 64], [128, 128]],
            "downsample_rate": "2/4",
            # Each layer gets the image from another layer of its encoder or another quarter of it.
            "deepstack_layer_map": [[-3, 0], [-2, 1]],
            "spatial_target_layers": [2, 3, 4, 5],
        },
        processor=tile_processors.granite4_vision,
        cases=shown("<image>", PICTURES),
        published=TOWER,
        needs=TORCHVISION,
    ),
    MediaSpec(
        "MiniCPMV4_6ForConditionalGeneration",
        "MiniCPM-V 4.6",
        "minicpmv4_6",
        MINICPM,
        processor=tile_processors.minicpmv4_6,
        cases=shown("<|image_pad|>", PICTURES),
        more=beside("<|video_pad|>", VIDEOS, "<|image_pad|>"),
        chunk=96,
        needs=TORCHVISION,
    ),
    MediaSpec(
        "MiniCPMV4_7ForConditionalGeneration",
        "MiniCPM-V 4.7",
        "minicpmv4_7",
        {
            **MINICPM,
            "image_start_id": FIRST + 2,
            "image_end_id": FIRST + 3,
            "slice_start_id": FIRST + 4,
            "slice_end_id": FIRST + 5,
            "newline_id": FIRST + 8,
        },
        processor=tile_processors.minicpmv4_7,
        cases=shown("<|image_pad|>", PICTURES),
        # An answer to the third has a video's token, which transformers would read as one.
        more=beside("<|video_pad|>", VIDEOS[:2], "<|image_pad|>"),
        chunk=96,
        needs=TORCHVISION,
    ),
    MediaSpec(
        "QianfanOCRForConditionalGeneration",
        "Qianfan-OCR",
        "qianfan_ocr",
        {
            "text_config": {"model_type": "qwen3"},
            "vision_config": {**VISION, "patch_size": 14, "image_size": SIDE},
            "image_token_id": FIRST,
            "image_seq_length": 4,
            # In the words of published checkpoints, which the host reads.
            "min_dynamic_patch": 1,
            "max_dynamic_patch": 4,
            "dynamic_image_size": True,
            "ps_version": "v2",
            "select_layer": -1,
            "use_thumbnail": True,
            "force_image_size": SIDE,
        },
        processor=tile_processors.qianfan_ocr,
        cases=shown("<image>", PICTURES),
        # transformers writes the text's layers as if they were the encoder's.
        published=((r"^(language_model\.model\.)encoder\.", r"\1"),),
        options={"hf_overrides": {"vision_config": {"image_size": SIDE, "patch_size": 14}}},
        needs=TORCHVISION,
    ),
)
