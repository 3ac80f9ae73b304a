"""The architectures that embed, classify and rank, sorted by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.zoo import pooling_processors, processors, whole_prompt_processors
from tests.zoo.build import EAGER, WINDOW, Spec
from tests.zoo.gemma_specs import (
    GEMMA4_IDS,
    GEMMA4_SOUND,
    GEMMA4_VISION,
    GLOBAL_LAYERS,
    SHORT_VIDEOS,
)
from tests.zoo.latents import GROUPED, ODD_LATENT, YARN
from tests.zoo.media import (
    PICTURES,
    SOUNDS,
    TORCHVISION,
    Case,
    Picture,
    Shown,
    beside,
    kinds,
    shown,
)
from tests.zoo.processors import FIRST
from tests.zoo.tile_specs import SIGLIP


@dataclass(frozen=True)
class PoolingSpec(Spec):
    """auto: the class that makes the model, which also says the task; pool: the tokens whose states
    become an embedding; STEP: those of which each is scored.

    processor: leaves that of a model that takes more than texts in a folder; cases: what else it
    takes; begin, second and end: the tokens there in texts, where they need certain ones.
    """

    auto: str = "AutoModel"
    pool: str = "CLS"
    processor: Callable[[Path], Any] | None = None
    cases: tuple[Case, ...] = ()
    begin: int | None = None
    second: int | None = None
    end: int | None = None

    @property
    def media(self) -> set[str]:
        """The kinds that its requests have."""
        return kinds(self.cases)


SEQUENCE, TOKEN = "AutoModelForSequenceClassification", "AutoModelForTokenClassification"
# What the host reads of every published checkpoint, and transformers 5 no longer writes.
ABSOLUTE = {"position_embedding_type": "absolute"}
ROPE = {"position_embedding_type": "rope"}
MODERN: dict[str, Any] = {
    "local_attention": WINDOW,
    "global_attn_every_n_layers": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
SLIDING = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
VISION = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": processors.SIDE,
    "patch_size": 14,
}
# For models that have an encoder for texts and one for pictures.
ALONE = tuple(
    Shown("", "", (Picture(*size),), "") for size in ((60, 40, 1), (90, 120, 2), (56, 56, 3))
)
# What published configs of NomicBERT say twice, and the host reads.
NOMIC = {
    "n_embd": 192,
    "n_inner": 352,
    "n_layer": 3,
    "activation_function": "swiglu",
    "layer_norm_epsilon": 1e-12,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "qkv_proj_bias": False,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
}
TIED = {"tie_word_embeddings": True}
# Tokens of jina-reranker-v3, which the host looks for in no config.
DOCUMENT, QUERY = 151670, 151671
CLASSES, SCORE = {"num_labels": 5}, {"num_labels": 1}

SPECS = (
    PoolingSpec(
        "BertForSequenceClassification", "BERT classifiers", "bert", CLASSES, auto=SEQUENCE
    ),
    PoolingSpec("BertForTokenClassification", "BERT taggers", "bert", CLASSES, auto=TOKEN),
    PoolingSpec("BertSpladeSparseEmbeddingModel", "SPLADE", "bert", TIED, auto="Splade"),
    PoolingSpec(
        "BgeM3EmbeddingModel",
        "BGE-M3 with sparse and ColBERT embeddings",
        "xlm-roberta",
        ABSOLUTE,
        auto="BgeM3",
        begin=1,
        end=2,
    ),
    PoolingSpec("BertModel", "BERT, BGE, E5", "bert", pool="MEAN", selected=True),
    PoolingSpec(
        "CLIPModel",
        "CLIP",
        "clip",
        {
            "text_config": {
                "model_type": "clip_text_model",
                "eos_token_id": 1,
                "projection_dim": 192,
            },
            "vision_config": VISION,
            "projection_dim": 192,
        },
        pool="LAST",
        processor=processors.clip,
        cases=ALONE,
        end=1,
        selected=True,
    ),
    PoolingSpec(
        "ColBERTLfm2Model",
        "LFM2 ColBERT",
        "lfm2",
        {
            **TIED,
            "layer_types": ["conv", "full_attention", "conv"],
            "conv_dim": 192,
            "block_dim": 192,
        },
        auto="Lfm2ColBert",
    ),
    PoolingSpec(
        "ColBERTModernBertModel",
        "GTE ModernColBERT",
        "modernbert",
        MODERN,
        auto="ModernColBert",
        published=((r"^model\.", ""),),
    ),
    PoolingSpec(
        "ColPaliForRetrieval",
        "ColPali",
        "colpali",
        {
            "vlm_config": {
                "model_type": "paligemma",
                "text_config": {"model_type": "gemma"},
                "vision_config": SIGLIP,
                "projection_dim": 192,
                "tie_word_embeddings": True,
                "image_token_index": FIRST,
            },
            "embedding_dim": 64,
        },
        auto="ColPaliForRetrieval",
        processor=whole_prompt_processors.paligemma,
        cases=shown("", PICTURES, at_once=1),
        published=(
            (r"^(vlm\.vision_tower\.)(?!vision_model)", r"\1vision_model."),
            (r"^(vlm\.language_model\.)(?!model\.)", r"\1model."),
        ),
        whole_prompts=True,
        needs=TORCHVISION,
    ),
    PoolingSpec(
        "DeepseekV3BidirectionalModel",
        "DeepSeek V3 embeddings",
        "deepseek_v3",
        {**ODD_LATENT, **GROUPED, **YARN, "is_causal": False},
        pool="MEAN",
    ),
    PoolingSpec(
        "EmbeddingGemma2Model",
        "EmbeddingGemma 2",
        "embedding_gemma2",
        {
            "text_config": {
                "model_type": "embedding_gemma2_text",
                **SLIDING,
                "per_layer_config": GLOBAL_LAYERS,
                "hidden_size_per_layer_input": 40,
                "embedding_dim": 72,
            },
            "vision_config": GEMMA4_VISION,
            "audio_config": GEMMA4_SOUND,
            **GEMMA4_IDS,
        },
        pool="MEAN",
        processor=pooling_processors.embedding_gemma2,
        cases=(
            *shown("<image_soft_token>", PICTURES),
            *beside("<|video|>", SHORT_VIDEOS, "<image_soft_token>"),
            *beside("<audio_soft_token>", SOUNDS[1:], "<image_soft_token>"),
        ),
        needs=TORCHVISION,
    ),
    PoolingSpec(
        "GPT2ForSequenceClassification", "GPT-2 classifiers", "gpt2", CLASSES, auto=SEQUENCE
    ),
    PoolingSpec(
        "Gemma2ForSequenceClassification",
        "Gemma 2 rerankers",
        "gemma2",
        {**SCORE, **SLIDING, **EAGER},
        auto=SEQUENCE,
    ),
    PoolingSpec("Gemma2Model", "BGE Gemma 2", "gemma2", {**SLIDING, **EAGER}, pool="LAST"),
    PoolingSpec(
        "Gemma3TextModel",
        "EmbeddingGemma",
        "gemma3_text",
        {**SLIDING, "use_bidirectional_attention": True},
        pool="MEAN",
        selected=True,
    ),
    PoolingSpec("GteModel", "Snowflake Arctic Embed 2 (GTE)", "gte", ROPE),
    PoolingSpec("HF_ColBERT", "ColBERT", "bert", auto="ColBert"),
    PoolingSpec(
        "JambaForSequenceClassification",
        "Jamba reward models",
        "jamba",
        CLASSES,
        auto=SEQUENCE,
        refused="recurrent state",
    ),
    PoolingSpec(
        "JinaEmbeddingsV5Model",
        "Jina Embeddings v5",
        "qwen3",
        pool="LAST",
        note="without its adapters",
    ),
    PoolingSpec(
        "JinaForRanking",
        "Jina Reranker v3",
        "qwen3",
        {"vocab_size": QUERY + 1},
        auto="JinaRanking",
        second=DOCUMENT,
        end=QUERY,
    ),
    PoolingSpec(
        "LlamaBidirectionalForSequenceClassification",
        "Llama Nemotron rerankers",
        "llama",
        {**SCORE, "is_causal": False, "pooling": "last"},
        auto=SEQUENCE,
    ),
    PoolingSpec(
        "LlamaBidirectionalModel",
        "Llama Nemotron embeddings",
        "llama",
        {"is_causal": False, "pooling": "avg"},
        pool="MEAN",
    ),
    PoolingSpec(
        "LlamaForSequenceClassification", "Llama reward models", "llama", CLASSES, auto=SEQUENCE
    ),
    PoolingSpec("LlamaModel", "Llama embeddings", "llama", pool="LAST"),
    PoolingSpec("MistralModel", "E5-Mistral", "mistral", {"sliding_window": None}, pool="LAST"),
    PoolingSpec(
        "ModernBertForSequenceClassification",
        "ModernBERT classifiers",
        "modernbert",
        {**MODERN, **CLASSES, "classifier_pooling": "mean"},
        auto=SEQUENCE,
        selected=True,
    ),
    PoolingSpec(
        "ModernBertForTokenClassification",
        "ModernBERT taggers",
        "modernbert",
        {**MODERN, **CLASSES},
        auto=TOKEN,
    ),
    PoolingSpec("ModernBertModel", "ModernBERT, GTE ModernBERT", "modernbert", MODERN),
    PoolingSpec("NomicBertModel", "Nomic Embed", "nomic_bert", NOMIC, pool="MEAN"),
    PoolingSpec(
        "OpenAIPrivacyFilterForTokenClassification",
        "OpenAI Privacy Filter",
        "openai_privacy_filter",
        {**CLASSES, **EAGER},
        auto=TOKEN,
    ),
    PoolingSpec(
        "Qwen2ForProcessRewardModel",
        "Qwen2.5-Math-PRM",
        "qwen2",
        {"num_labels": 2},
        auto="Qwen2RewardModel",
        pool="STEP",
        second=7,  # besides the last: the first token says much about it
        end=7,
    ),
    PoolingSpec("Qwen2ForRewardModel", "Qwen2.5-Math-RM", "qwen2", SCORE, auto="Qwen2RewardModel"),
    PoolingSpec(
        "Qwen2ForSequenceClassification", "Qwen 2 rerankers", "qwen2", SCORE, auto=SEQUENCE
    ),
    PoolingSpec("Qwen2Model", "GTE Qwen 2", "qwen2", pool="LAST"),
    PoolingSpec("Qwen3ForSequenceClassification", "Qwen3 rerankers", "qwen3", SCORE, auto=SEQUENCE),
    PoolingSpec("Qwen3Model", "Qwen3 Embedding", "qwen3", pool="LAST", selected=True),
    PoolingSpec(
        "RobertaForSequenceClassification",
        "RoBERTa classifiers",
        "roberta",
        CLASSES,
        auto=SEQUENCE,
    ),
    PoolingSpec("RobertaForTokenClassification", "RoBERTa taggers", "roberta", CLASSES, auto=TOKEN),
    PoolingSpec("RobertaModel", "RoBERTa, all-RoBERTa", "roberta"),
    PoolingSpec(
        "SiglipModel",
        "SigLIP",
        "siglip",
        {
            "text_config": {"model_type": "siglip_text_model"},
            "vision_config": {**VISION, "hidden_size": 192},
        },
        processor=processors.siglip,
        cases=ALONE,
    ),
    PoolingSpec(
        "VoyageQwen3BidirectionalEmbedModel",
        "Voyage 4 Nano",
        "qwen3",
        {"is_causal": False, "num_labels": 40},
        auto="VoyageEmbedding",
        pool="MEAN",
    ),
    PoolingSpec(
        "XLMRobertaForSequenceClassification",
        "BGE rerankers (XLM-RoBERTa)",
        "xlm-roberta",
        {**ABSOLUTE, **SCORE},
        auto=SEQUENCE,
        selected=True,
    ),
    PoolingSpec(
        "XLMRobertaForTokenClassification",
        "XLM-RoBERTa taggers",
        "xlm-roberta",
        {**ABSOLUTE, **CLASSES},
        auto=TOKEN,
    ),
    PoolingSpec("XLMRobertaModel", "BGE-M3, multilingual E5", "xlm-roberta", ABSOLUTE),
)
