"""Image architectures whose code comes with their checkpoints: ``transformers`` has their parts,
sorted by name."""

from __future__ import annotations

from dataclasses import replace

from tests.zoo import (
    deepseek_ocr,
    deepseek_ocr2,
    deepseek_vl2,
    glm4v,
    isaac,
    kanana,
    keye,
    llava_onevision2,
    molmo,
    nvlm,
    pangu_vl,
    phi4v,
    step,
)
from tests.zoo.build import BASE
from tests.zoo.image_specs import SPECS as IMAGE_SPECS
from tests.zoo.media import PICTURES, TORCHVISION, VIDEOS, MediaSpec, Picture, beside, shown
from tests.zoo.processors import FIRST
from tests.zoo.renamed_image_specs import INTERN_VIT, INTERNVL, REMOTE, _intern_chat
from tests.zoo.renamed_mixture_specs import SPECS as MIXTURES
from tests.zoo.renamed_specs import CHATGLM

DEEPSEEK = {
    "head_dim": BASE["head_dim"],
    "num_key_value_heads": BASE["num_attention_heads"],
    "partial_rotary_factor": 1.0,
    "first_k_dense_replace": 1,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "image_token_id": FIRST,
}
# One in a whole and a crop, one in three beside each other, one in two by two.
CROPPED = (PICTURES[0], Picture(200, 100, 2), PICTURES[2])
STEP3_TEXT = next(s for s in MIXTURES if s.name == "Step3TextForCausalLM")
STEP_TEXT = next(s for s in MIXTURES if s.name == "Step3p5ForCausalLM")
STEP = MediaSpec(
    "Step3p7ForConditionalGeneration",
    "Step 3.7 Flash",
    "step3p7",
    {
        "text_config": {"model_type": STEP_TEXT.model_type, **STEP_TEXT.config},
        "vision_config": {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "mlp_ratio": 1.75,
        },
        "image_token_id": FIRST,
    },
    processor=step.processor,
    # In no pieces, in three and in none.
    cases=shown(step.MARK, (PICTURES[0], Picture(200, 90, 2), PICTURES[2])),
    published_config=step.published,
    reference={"model.vision_model.rotary_emb.forward": step.columns_first},
    options={**REMOTE, "max_model_len": 1024},
    needs=TORCHVISION,
    note="compared with Step 3.7 of transformers, of pieces that the host cuts, with patches that "
    "turn by column first, as published",
)
ONEVISION = next(s for s in IMAGE_SPECS if s.name == "LlavaOnevisionForConditionalGeneration")
BEE = replace(
    ONEVISION,
    name="BeeForConditionalGeneration",
    models="Bee",
    config={**ONEVISION.config, "text_config": {"model_type": "qwen3"}},
    more=(),
    # transformers knows its own classes alone by the names of weights.
    published=(*ONEVISION.published, (r"(language_model\.)model\.", r"\1")),
    note="compared with LLaVA-OneVision of transformers with another projector",
)
KEYE = MediaSpec(
    "KeyeVL1_5ForConditionalGeneration",
    "Keye-VL 1.5",
    "keyevl1_5",
    {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [4, 6, 6],
        },
        "vision_config": {
            "hidden_size": 64,
            "intermediate_size": 112,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": 70,
        },
        "image_token_id": FIRST,
        "video_token_id": FIRST + 1,
    },
    processor=keye.processor,
    cases=shown(keye.IMAGE, PICTURES),
    more=beside(keye.VIDEO, VIDEOS, keye.IMAGE),
    published_config=keye.published,
    options=REMOTE,
    needs=TORCHVISION,
    note="compared with PaddleOCR-VL's encoder and Qwen 3",
)
SPECS = (
    BEE,
    MediaSpec(
        "DeepseekOCR2ForCausalLM",
        "DeepSeek-OCR 2",
        "deepseek_ocr2",
        deepseek_ocr2.CONFIG,
        processor=deepseek_ocr2.processor,
        # Two of them whole, one in two tiles, too.
        cases=shown(deepseek_ocr.MARK, (PICTURES[0], PICTURES[2], Picture(900, 400, 3))),
        chunk=576,
        auto="DeepseekOcr2ForConditionalGeneration",
        published_config=deepseek_ocr2.published,
        options={"max_model_len": 1536},
        needs=TORCHVISION,
        note="compared with fewer layers than vLLM has for all of its checkpoints",
    ),
    MediaSpec(
        "DeepseekOCRForCausalLM",
        "DeepSeek-OCR",
        "deepseek_vl_v2",
        DEEPSEEK,
        processor=deepseek_ocr.processor,
        # None, two and six tiles.
        cases=shown(deepseek_ocr.MARK, (PICTURES[0], Picture(200, 90, 2), PICTURES[2])),
        published=deepseek_ocr.NAMES,
        published_config=deepseek_ocr.published,
        needs=TORCHVISION,
        note="compared with SAM, CLIP and DeepSeek MoE, and what is between them in plain torch, "
        "with fewer layers and smaller images than vLLM has for all of its checkpoints",
    ),
    MediaSpec(
        "DeepseekVLV2ForCausalLM",
        "DeepSeek-VL2",
        "deepseek_vl_v2",
        DEEPSEEK,
        processor=deepseek_vl2.processor,
        cases=shown(deepseek_ocr.MARK, PICTURES),
        published=deepseek_vl2.NAMES,
        batched=r"pos_embed$",
        published_config=deepseek_vl2.published,
        needs=(*TORCHVISION, "timm"),
        note="compared with SigLIP and DeepSeek MoE, and what is between them in plain torch, with "
        "fewer layers and smaller tiles than vLLM has for all of its checkpoints",
    ),
    MediaSpec(
        "GLM4VForCausalLM",
        "GLM-4V-9B",
        "chatglm",
        CHATGLM.config,
        processor=glm4v.processor,
        cases=shown(glm4v.MARK, PICTURES, at_once=1),
        published=((r"^model\.vision", "transformer.vision"), *CHATGLM.published),
        published_config=glm4v.published,
        needs=TORCHVISION,
        note="compared with GLM-4-9B and an encoder in plain torch",
    ),
    MediaSpec(
        "IsaacForConditionalGeneration",
        "Isaac",
        "isaac",
        {
            # The sections are not said, the other word is passed over.
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_interleaved": True,
            },
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "num_patches": 25,
                "patch_size": 16,
                "pixel_shuffle_scale_factor": 2,
            },
            "vision_max_num_patches": 512,
            "image_token_id": FIRST,
        },
        processor=isaac.processor,
        cases=shown(isaac.MARK, PICTURES),
        chunk=128,
        options={"max_model_len": 1024},
        note="compared with SigLIP 2 and Qwen 3, of patches that the host cuts",
    ),
    MediaSpec(
        "KananaVForConditionalGeneration",
        "Kanana 1.5 V",
        "kanana-1.5-v",
        {
            "text_config": {"model_type": "llama"},
            "vision_config": {
                "depth": 3,
                "embed_dim": 64,
                "num_heads": 2,
                "mlp_ratio": 2,
                "hidden_size": 64,
            },
            "projector_config": {
                "pos_emb_size": 36,
                "encoder_hidden_size": 64,
                "hidden_size": 48,
                "output_hidden_size": BASE["hidden_size"],
                "depth": 1,
            },
        },
        processor=kanana.processor,
        cases=shown(kanana.MARK, PICTURES),
        published_config=kanana.published,
        options=REMOTE,
        needs=(*TORCHVISION, "timm"),
        note="compared with Qwen2-VL's encoder, Llama and an abstractor of timm's stages",
    ),
    replace(
        KEYE,
        name="KeyeForConditionalGeneration",
        models="Keye-VL",
        model_type="keye",
        more=(),
        without=("video",),
    ),
    KEYE,
    MediaSpec(
        "LlavaOnevision2ForConditionalGeneration",
        "LLaVA-OneVision 2",
        "llava_onevision2",
        {
            "text_config": {"model_type": "qwen3"},
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
            },
            "image_token_id": FIRST,
            "video_token_id": FIRST + 1,
        },
        processor=llava_onevision2.processor,
        cases=shown(llava_onevision2.IMAGE, PICTURES),
        more=beside(llava_onevision2.VIDEO, VIDEOS, llava_onevision2.IMAGE),
        published_config=llava_onevision2.published,
        options=REMOTE,
        needs=TORCHVISION,
        note="compared with Qwen 3 and an encoder in plain torch",
    ),
    MediaSpec(
        "Molmo2ForConditionalGeneration",
        "Molmo 2",
        "molmo2",
        {
            "text_config": {
                "model_type": "molmo2_text",
                "vocab_size": molmo.WORDS,
                "additional_vocab_size": molmo.NEW,
            },
            "vit_config": {
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "image_default_input_size": [molmo.SIDE, molmo.SIDE],
                "image_num_pos": molmo.PATCHES**2,
            },
            "adapter_config": {
                "vit_layers": [-1, -3],
                "hidden_size": 64,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "intermediate_size": 112,
                "text_hidden_size": BASE["hidden_size"],
            },
            **molmo.NUMBERS,
        },
        processor=molmo.molmo2,
        cases=shown(f"Image {molmo.IMAGE}", CROPPED),
        more=beside(molmo.VIDEO, VIDEOS, f"Image {molmo.IMAGE}"),
        published=molmo.NAMES2,
        chunk=96,  # less than a video with the times of its frames
        published_config=molmo.published,
        options=REMOTE,
        note="compared with Qwen 3 and an encoder in plain torch; tokens of an image or a frame "
        "see each other, and not those of the next, as transformers has it",
    ),
    MediaSpec(
        "MolmoForCausalLM",
        "Molmo 7B-D",
        "molmo",
        {"vocab_size": molmo.WORDS, "sliding_window": None},
        processor=molmo.molmo,
        cases=shown("", CROPPED),
        published=molmo.NAMES,
        published_config=molmo.published,
        options=REMOTE,
        note="compared with Qwen 2 and an encoder in plain torch",
    ),
    replace(
        INTERNVL,
        name="NVLM_D",
        models="NVLM-D",
        config={
            **INTERNVL.config,
            "vision_config": {
                **INTERN_VIT,
                "attention_bias": False,
                "norm_type": "rms_norm",
                "use_qk_norm": True,
            },
        },
        processor=nvlm.processor,
        cases=shown(nvlm.MARK, PICTURES),
        auto="NVLMForConditionalGeneration",
        published=nvlm.NAMES,
        published_config=_intern_chat(nvlm.MODEL_TYPE),
        padded=nvlm.PADDED,
        chunk=128,
        note="compared with InternVL of transformers with another projector",
    ),
    MediaSpec(
        "OpenPanguVLForConditionalGeneration",
        "openPangu-VL",
        "openpangu_vl",
        {
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 6, 6],
                "mrope_interleaved": True,
            },
            "vision_config": {
                "depth": 4,
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_heads": 2,
                "out_hidden_size": 80,
                "hidden_act": "gelu",
                "window_size": 56,
                "fullatt_block_indexes": [1],
            },
            "image_token_id": FIRST,
            "video_token_id": FIRST + 1,
        },
        processor=pangu_vl.processor,
        cases=shown(pangu_vl.IMAGE, PICTURES),
        more=beside(pangu_vl.VIDEO, VIDEOS, pangu_vl.IMAGE),
        published=pangu_vl.NAMES,
        published_config=pangu_vl.published,
        options=REMOTE,
        needs=TORCHVISION,
        note="compared with Qwen2.5-VL's encoder and Llama",
    ),
    MediaSpec(
        "Phi4ForCausalLMV",
        "Phi-4 reasoning vision",
        "phi4-siglip",
        {
            "vocab_size": phi4v.IMAGE_TOKEN + 24,  # the host knows the number of an image's tokens
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "num_patches": 25,
                "patch_size": 16,
            },
            "mm_hidden_size": 64,
            "max_num_patches": 36,
        },
        processor=phi4v.processor,
        cases=shown(phi4v.MARK, PICTURES),
        published=phi4v.NAMES,
        published_config=phi4v.published,
        options=REMOTE,
        needs=TORCHVISION,
        note="compared with SigLIP 2 and Phi-3 of transformers",
    ),
    replace(BEE, name="RForConditionalGeneration", models="R-4B"),
    replace(
        STEP,
        name="Step3VLForConditionalGeneration",
        models="Step 3 with images",
        model_type=step.Step3VLConfig.model_type,
        config={
            **STEP3_TEXT.config,
            "eyes": {
                "hidden_size": 64,
                "intermediate_size": 112,
                "output_hidden_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 728,
                "patch_size": 14,
                "layer_norm_eps": 1e-5,
            },
            "image_token_id": FIRST,
        },
        published=STEP3_TEXT.published,
        published_config=step.published_step3,
        reference={},
        options={"max_model_len": 1024},
        note="compared with GLM-4.5, with queries by way of a latent and another router, and an "
        "encoder in plain torch, of pieces that the host cuts",
    ),
    STEP,
    replace(
        STEP,
        name="StepVLForConditionalGeneration",
        models="Step3-VL 10B",
        model_type=step.StepVLConfig.model_type,
        config={**STEP.config, "text_config": {"model_type": "qwen3"}},
        reference={"model.vision_model.rotary_emb.forward": step.columns_first},
        note="compared with Qwen 3 and the encoder of Step 3.7, of pieces that the host cuts, with "
        "patches that turn by column first, as published",
    ),
    MediaSpec(
        "UnlimitedOCRForCausalLM",
        "Unlimited-OCR",
        "deepseek_vl_v2",
        DEEPSEEK,
        refused="last tokens of its answer alone",
        published_config=deepseek_ocr.published,
    ),
)
