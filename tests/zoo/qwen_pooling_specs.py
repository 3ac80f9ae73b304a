"""The architectures that embed or rank by a Qwen model that sees, sorted by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.zoo import processors
from tests.zoo.grid_specs import BEHIND_NOTE, BEHIND_VIDEOS, QWEN_MARK, QWEN_VIDEO_MARK
from tests.zoo.grid_specs import SPECS as GRID_SPECS
from tests.zoo.media import PICTURES, TORCHVISION, VIDEOS, beside, shown
from tests.zoo.pooling_specs import PoolingSpec
from tests.zoo.qwen_heads import WIDTH

MODEL = {spec.name: spec.config for spec in GRID_SPECS}
CASES = (*shown(QWEN_MARK, PICTURES, at_once=1)[:-1], *beside(QWEN_VIDEO_MARK, VIDEOS, QWEN_MARK))


def _of_type(model_type: str, **different: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda config: {**config, "model_type": model_type, **different}


COLQWEN3 = PoolingSpec(
    "ColQwen3",
    "ColQwen3 of Tomoro",
    "qwen3_vl",
    MODEL["Qwen3VLForConditionalGeneration"],
    auto="ColQwen3",
    processor=processors.qwen3_vl,
    cases=CASES,
    published=((r"^custom_text_proj", "embedding_proj_layer"), (r"^model\.", "vlm.model.")),
    published_config=_of_type("colqwen3", embed_dim=WIDTH),
    needs=TORCHVISION,
)

SPECS = (
    COLQWEN3,
    replace(
        COLQWEN3,
        name="ColQwen3_5",
        models="ColQwen3.5",
        model_type="qwen3_5",
        config=MODEL["Qwen3_5ForConditionalGeneration"],
        auto="ColQwen3_5",
        published=((r"^model\.", ""),),
        published_config=_of_type("qwen3_5", dim=WIDTH, retrieval_attention_contract="causal"),
    ),
    PoolingSpec(
        "JinaVLForRanking",
        "Jina Reranker m0",
        "qwen2_vl",
        {**MODEL["Qwen2VLForConditionalGeneration"], "num_labels": 1},
        auto="JinaVLForSequenceClassification",
        processor=processors.qwen2_vl,
        cases=CASES,
        published=((r"^model\.visual\.", "visual."),),
        reference=BEHIND_VIDEOS,
        note=BEHIND_NOTE,
        needs=TORCHVISION,
    ),
    replace(
        COLQWEN3,
        name="OpsColQwen3Model",
        models="Ops-ColQwen3",
        published=((r"^model\.", ""),),
        published_config=_of_type("ops_colqwen3", dims=WIDTH),
    ),
    replace(
        COLQWEN3,
        name="Qwen3VLNemotronEmbedModel",
        models="Nemotron ColEmbed VL 2",
        auto="Qwen3VLTokens",
        published=(),
        published_config=_of_type("qwen3_vl_nemotron_embed"),
    ),
)
