"""``python -m tests.zoo.gguf_pooling [NAMES]``: embeddings and scores out of GGUF files that
llama.cpp's own converter wrote, in F32 and Q8_0, judged as those of their checkpoints are
(``pooling.py``).  One JSON line per model.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from cpu_backend.gguf import folder as folder_files
from cpu_backend.gguf.reader import GgufFile
from tests.zoo import gguf_files, judge, pooling, run
from tests.zoo.build import build
from tests.zoo.elsewhere import run_engine
from tests.zoo.judge import Outcome
from tests.zoo.pooling_specs import PoolingSpec
from tests.zoo.text import COMMON

# What a GGUF file does not say and llama.cpp takes for granted.
GRANTED: dict[str, dict[str, Any]] = {
    "Gemma3TextModel": {
        "query_pre_attn_scalar": 32,
        "num_hidden_layers": 7,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
    },
    "ModernBertForSequenceClassification": {"global_attn_every_n_layers": 3},
    "ModernBertModel": {"global_attn_every_n_layers": 3},
}
# What published configs say, and transformers no longer writes.
WRITTEN: dict[str, dict[str, Any]] = {
    "EuroBertModel": {"classifier_pooling": "mean"},  # the converter does not know the default
    "ModernBertForSequenceClassification": {"layer_norm_eps": 1e-5},
    "ModernBertModel": {"layer_norm_eps": 1e-5},
    "NomicBertModel": {
        "causal": False,
        "max_trained_positions": 2048,
        "n_head": 6,
        "n_positions": 8192,
        "prenorm": False,
        "rotary_emb_base": 1000.0,
        "rotary_emb_fraction": 1.0,
    },
}
RERANKER = "Qwen3ForCausalLM"
# Models that are others in their checkpoints.
OTHERS = (
    PoolingSpec("EuroBertModel", "EuroBERT, Jina Embeddings 5 Nano", "eurobert", pool="MEAN"),
    PoolingSpec(
        RERANKER,
        "Qwen3-Reranker",
        "qwen3",
        {"tie_word_embeddings": True},
        auto="Qwen3RerankerForSequenceClassification",
    ),
)
QUERY, DOCUMENTS = "Which town?", ("Paris is one.", "{query} {{ 1 }}\n", "Trees grow.")
TOKENIZERS = {"NomicBertModel": "WordPiece"}
NAMES = (
    "BertModel",
    "EuroBertModel",
    "Gemma3TextModel",
    "LlamaBidirectionalModel",
    "ModernBertForSequenceClassification",
    "ModernBertModel",
    "NomicBertModel",
    RERANKER,
    "Qwen3Model",
    "RobertaForSequenceClassification",
    "XLMRobertaForSequenceClassification",
    "XLMRobertaModel",
)
WORDS = {"MEAN": "mean_tokens", "CLS": "cls_token", "LAST": "lasttoken"}


def write_pooling(folder: Path, kind: str) -> None:
    """What the converter reads of how embeddings are made."""
    place = folder / "1_Pooling"
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps({f"pooling_mode_{WORDS[kind]}": True}))
    module = {
        "idx": 1,
        "name": "1",
        "path": place.name,
        "type": f"{folder_files.SENTENCE_MODULES}.Pooling",
    }
    (folder / "modules.json").write_text(json.dumps([module]))


def scores(file: Path, tokenizer: str) -> list[float]:
    """Of DOCUMENTS, in the words that the file puts around them."""
    from vllm import LLM

    options = {**COMMON, "max_model_len": 1024, "dtype": "float32"}
    llm = LLM(str(file), tokenizer=tokenizer, runner="pooling", **options)
    return [output.outputs.score for output in llm.score(QUERY, list(DOCUMENTS))]


def wrong_scores(model: Any, spec: PoolingSpec, folder: Path) -> list[str]:
    """Of pairs of texts."""
    file = folder / "F32.gguf"
    template = GgufFile(file).metadata["tokenizer.chat_template.rerank"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    faults = []
    for document, mine in zip(DOCUMENTS, run_engine(scores, file, str(folder)), strict=True):
        said = template.replace("{query}", QUERY).replace("{document}", document)
        right = float(pooling.expected(model, spec, tuple(tokenizer(said).input_ids), None))
        if abs(mine - right) > pooling.DIFFERENCE:
            faults.append(f"'{document}': a score of {mine:.5f} in place of {right:.5f}")
    return faults


def examine(spec: PoolingSpec, folder: Path) -> Outcome:
    """Runs in a process of its own."""
    own = {**spec.config, **GRANTED.get(spec.name, {})}
    written = WRITTEN.get(spec.name, {})
    spec = replace(spec, config=own, published_config=lambda config: {**config, **written})
    model = build(spec, folder)
    if spec.auto == "AutoModel":
        write_pooling(folder, spec.pool)
    elif spec.name == RERANKER:  # which the converter knows by it
        (folder / "README.md").write_text("# Qwen3-Reranker\n")
    asked = replace(spec, pool=None, published_config=dict)  # the file says it
    try:
        said = TOKENIZERS.get(spec.name, "")
        file, options = gguf_files.converted(folder, "F32", said)
        found = {
            dtype: pooling.answers(file, asked, dtype, None, options)
            for dtype in ("float32", "bfloat16")
        }
        file, options = gguf_files.converted(folder, "Q8_0", said)
        found["Q8_0"] = pooling.answers(file, asked, "float32", None, options)
    except run.Failed as failed:
        return judge.failure(failed, spec.host, spec.note)
    size = gguf_files.Q8_0
    faults = [
        *gguf_files.damaged(folder / "F32.gguf"),
        *pooling.differences(spec, found),
        *pooling.wrong_numbers(model, spec, None, found["float32"]),
        *(wrong_scores(model, spec, folder) if spec.name == RERANKER else []),
        *pooling.bf16_faults(model, spec, None, found["bfloat16"]),
        *pooling.rounding_faults(model, spec, None, found["Q8_0"], size, "Q8_0"),
    ]
    return Outcome(judge.WRONG if faults else judge.RIGHT, "; ".join(faults) or spec.note)


def main() -> int:
    """Of all that are known if none is named."""
    specs = {spec.name: spec for spec in (*pooling.SPECS, *OTHERS)}
    return gguf_files.report((specs[name] for name in sys.argv[1:] or NAMES), examine)


if __name__ == "__main__":
    sys.exit(main())
