"""NVIDIA's architectures with images whose code comes with their checkpoints, sorted by name."""

from __future__ import annotations

from dataclasses import replace

from tests.zoo import llama_nemotron_vl, nemotron_parse, nemotron_vl
from tests.zoo.media import PICTURES, SOUNDS, TORCHVISION, VIDEOS, MediaSpec, Shown, beside, shown
from tests.zoo.processors import SIDE
from tests.zoo.renamed_image_specs import REMOTE
from tests.zoo.text_specs import SPECS as TEXT_SPECS
from tests.zoo.tile_specs import SIGLIP

NEMOTRON_H = next(spec for spec in TEXT_SPECS if spec.name == "NemotronHForCausalLM")
NEMOTRON = MediaSpec(
    "NemotronH_Nano_VL_V2",
    "Nemotron Nano VL V2",
    "nemotron_h_omni",
    {
        "text_config": {"model_type": "nemotron_h", **NEMOTRON_H.config},
        "vision_config": nemotron_vl.RADIO,
        "vision_hidden_size": nemotron_vl.RADIO["hidden_size"],
        "projector_hidden_size": 224,
        "image_token_id": nemotron_vl.IMAGE_TOKEN,
        "audio_token_id": nemotron_vl.SOUND_TOKEN,
    },
    processor=nemotron_vl.processor_of_tiles,
    cases=shown(nemotron_vl.IMAGE, PICTURES),
    more=beside(nemotron_vl.VIDEO, VIDEOS, nemotron_vl.IMAGE),
    auto="NemotronVL",
    published=(*nemotron_vl.NAMES, nemotron_vl.OF_FRAMES),
    published_config=nemotron_vl.published_of_tiles,
    reference={f"language_model.{name}": limit for name, limit in NEMOTRON_H.reference.items()},
    options=REMOTE,
    needs=TORCHVISION,
    note="compared with Nemotron 3 Omni of transformers, which computes the same of each tile",
)
OMNI = replace(
    NEMOTRON,
    name="NemotronH_Nano_Omni_Reasoning_V3",
    models="Nemotron 3 Nano Omni",
    note="",
    config={**NEMOTRON.config, "audio_config": nemotron_vl.PARAKEET},
    processor=nemotron_vl.processor_of_shapes,
    more=(
        *NEMOTRON.more,
        *beside(nemotron_vl.SOUND, SOUNDS, nemotron_vl.IMAGE),
        *shown(nemotron_vl.SOUND, SOUNDS)[3:5],  # as long as another, two at once
    ),
    published=nemotron_vl.NAMES,
    published_config=nemotron_vl.published_of_shapes,
)
SPECS = (
    MediaSpec(
        "Eagle2_5_VLForConditionalGeneration",
        "Eagle 2.5",
        "eagle_2_5_vl",
        {
            "llm_config": {"model_type": "qwen2"},
            "vision_config": SIGLIP,
            "force_image_size": SIDE,
            "max_dynamic_patch": llama_nemotron_vl.TILES,
        },
        processor=llama_nemotron_vl.eagle_processor,
        cases=shown(llama_nemotron_vl.MARK, PICTURES),
        more=(
            Shown(("<image-1>", "<image-2>"), "What are these?", PICTURES[1:], "Answer in words."),
        ),
        auto="Eagle",
        published=((r"^vision_model\.", "vision_model.vision_model."),),
        published_config=llama_nemotron_vl.eagle_published,
        options=REMOTE,
        needs=TORCHVISION,
        note="compared with SigLIP, Qwen 2 and what is between them in plain torch",
    ),
    MediaSpec(
        "Llama_Nemotron_Nano_VL",
        "Llama Nemotron Nano VL",
        "Llama_Nemotron_Nano_VL",
        {
            "llm_config": {"model_type": "llama"},
            "vision_config": {
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": SIDE,
                "max_img_size": 2 * SIDE,
                "patch_size": 14,
            },
            "force_image_size": SIDE,
            "projector_hidden_size": 224,
            "vit_hidden_size": 64,
        },
        processor=llama_nemotron_vl.processor,
        cases=shown(llama_nemotron_vl.MARK, PICTURES),
        auto="LlamaNemotronVL",
        published_config=llama_nemotron_vl.published,
        options=REMOTE,
        needs=TORCHVISION,
        note="compared with RADIO, Llama and what is between them in plain torch",
    ),
    MediaSpec(
        "NemotronParseForConditionalGeneration",
        "Nemotron Parse",
        "nemotron_parse",
        nemotron_parse.CONFIG,
        processor=nemotron_parse.processor,
        cases=nemotron_parse.CASES,
        fixed=True,
        auto="NemotronParse",
        published_config=nemotron_parse.published,
        options=REMOTE,
        needs=TORCHVISION,
        note="compared with RADIO, the decoder of mBART and what is between them in plain torch, "
        "with a smaller tower than vLLM has for all of its checkpoints",
    ),
    OMNI,
    NEMOTRON,
    replace(
        OMNI,
        name="NemotronH_Omni_Reasoning_V3",
        models="Nemotron 3 Omni",
    ),
    replace(
        OMNI,
        name="NemotronH_Super_Omni_Reasoning_V3",
        models="Nemotron 3 Super Omni",
        config={
            **OMNI.config,
            "text_config": {**NEMOTRON.config["text_config"], "num_nextn_predict_layers": 1},
        },
        note="with the norm that towers have where layers that draft come with the text",
    ),
)
