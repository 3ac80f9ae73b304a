"""Pooling models whose weights ``transformers`` has under other names than the published ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.zoo import llama_nemotron_vl, pooling_processors
from tests.zoo.audio_specs import QWEN3_ASR, QWEN3_HEARS
from tests.zoo.media import PICTURES, TORCHVISION, shown
from tests.zoo.newer_specs import NEEDS
from tests.zoo.pooling_specs import CLASSES, ROPE, SCORE, TOKEN, VISION, PoolingSpec
from tests.zoo.processors import FIRST, SIDE
from tests.zoo.renamed_specs import INTERNLM2
from tests.zoo.tile_specs import SIGLIP

NTK = {"rope_parameters": {"rope_type": "ntk", "rope_theta": 20000.0, "factor": 8.0}}
# Names of GTE's weights in the checkpoints of Alibaba, which hold "new." before the model's own.
NEW = (
    (r"^gte\.", ""),
    (r"^(?!classifier)", "new."),
    (r"\.layers\.", ".encoder.layer."),
    (r"self_attn\.q_proj", "attention.qkv_proj|0"),
    (r"self_attn\.k_proj", "attention.qkv_proj|1"),
    (r"self_attn\.v_proj", "attention.qkv_proj|2"),
    (r"self_attn\.o_proj", "attention.o_proj"),
    (r"post_attention_layernorm", "attn_ln"),
    (r"post_mlp_layernorm", "mlp_ln"),
    (r"mlp\.up_proj", "mlp.up_gate_proj|0"),
    (r"mlp\.gate_proj", "mlp.up_gate_proj|1"),
)
FLASH = (
    (r"embeddings\.LayerNorm", "emb_ln"),
    (r"\.layers\.", ".encoder.layers."),
    (r"self_attn\.q_proj", "mixer.Wqkv|0"),
    (r"self_attn\.k_proj", "mixer.Wqkv|1"),
    (r"self_attn\.v_proj", "mixer.Wqkv|2"),
    (r"self_attn\.o_proj", "mixer.out_proj"),
    (r"post_attention_layernorm", "norm1"),
    (r"post_mlp_layernorm", "norm2"),
)

TIMES = 7  # that a token may stand for


def _thinker(config: dict[str, Any]) -> dict[str, Any]:
    """The config of Qwen3-ASR as first published, which says how many times there are."""
    return {"model_type": "qwen3_asr", "thinker_config": {**config, "classify_num": TIMES}}


COL_MODERN = PoolingSpec(
    "ColModernVBertForRetrieval",
    "ColModernVBERT",
    "modernvbert",
    {
        # The host takes the rest for granted.
        "text_config": {
            "model_type": "modernbert",
            "vocab_size": 1000,
            "hidden_size": 192,
            "intermediate_size": 352,
            "num_hidden_layers": 4,
            "num_attention_heads": 6,
            "max_position_embeddings": 1024,
        },
        "vision_config": {**VISION, "model_type": "siglip_vision_model"},
        "pixel_shuffle_factor": 2,
        "image_token_id": FIRST,
        "embedding_dim": 24,
    },
    auto="ModernVColBert",
    processor=pooling_processors.colmodernvbert,
    cases=shown("", PICTURES, at_once=1)[:-1],
    published=((r"^model\.vision_model\.(?!vision_model)", r"\g<0>vision_model."),),
    needs=TORCHVISION,
)
NEMOTRON_VL = PoolingSpec(
    "LlamaNemotronVLModel",
    "Llama Nemotron embeddings of images",
    "llama_nemotron_vl",
    {
        # One label's score would be nearly the same of all long texts.
        "llm_config": {"model_type": "llama", "is_causal": False, **CLASSES},
        "vision_config": SIGLIP,
        "force_image_size": SIDE,
        "max_dynamic_patch": llama_nemotron_vl.TILES,
    },
    auto="LlamaNemotronVLEmbed",
    pool="MEAN",
    processor=llama_nemotron_vl.embed_processor,
    cases=shown(llama_nemotron_vl.MARK, PICTURES, at_once=1)[:-1],
    published_config=llama_nemotron_vl.embed_published,
    needs=TORCHVISION,
    note="compared with SigLIP, Llama and what is between them in plain torch",
)

SPECS = (
    PoolingSpec(
        "ColBERTJinaRobertaModel",
        "Jina ColBERT v2",
        "xlm-roberta-flash",
        {
            "position_embedding_type": "rotary",
            "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
            "lora_alpha": 1,
            "lora_rank": 4,
        },
        auto="JinaColBert",
        published=FLASH,
    ),
    COL_MODERN,
    replace(
        COL_MODERN,
        name="ModernVBertModel",
        models="ColModernVBERT by its other name",
        needs=(*TORCHVISION, *NEEDS),
    ),
    PoolingSpec(
        "Lfm2BidirectionalModel",
        "LFM2 in both directions",
        "lfm2",
        {
            "tie_word_embeddings": True,
            "layer_types": ["conv", "full_attention", "conv"],
            "conv_dim": 192,
            "block_dim": 192,
        },
        auto="Lfm2Bidirectional",
        needs=NEEDS,
    ),
    PoolingSpec(
        "GteNewForSequenceClassification",
        "GTE multilingual reranker",
        "new",
        {**ROPE, **NTK, **SCORE},
        auto="NewGteForSequenceClassification",
        published=NEW,
    ),
    PoolingSpec(
        "GteNewModel",
        "GTE multilingual",
        "new",
        {**ROPE, **NTK},
        auto="NewGte",
        published=NEW,
    ),
    PoolingSpec(
        "InternLM2ForRewardModel",
        "InternLM2 reward models",
        "llama",
        auto="LlamaRewardModel",
        published=INTERNLM2,
        by_key_head=True,
    ),
    replace(
        NEMOTRON_VL,
        name="LlamaNemotronVLForSequenceClassification",
        models="Llama Nemotron rerankers of images",
        auto="LlamaNemotronVLForSequenceClassification",
    ),
    NEMOTRON_VL,
    PoolingSpec(
        "Qwen3ASRForcedAlignerForTokenClassification",
        "Qwen3 Forced Aligner",
        "qwen3_asr",
        {**QWEN3_HEARS, "num_labels": TIMES},
        auto=TOKEN,
        processor=QWEN3_ASR.processor,
        cases=QWEN3_ASR.cases,
        published=(
            (r"^model\.language_model\.", "model."),
            (r"^model\.audio_tower\.", "audio_tower."),
            (r"^model\.multi_modal_projector\.linear_", "audio_tower.proj"),
            (r"^score\.", "lm_head."),
            (r"^", "thinker."),
        ),
        published_config=_thinker,
        needs=TORCHVISION,
    ),
)
