"""Qwen 2 and 3, dense and mixtures."""

from __future__ import annotations

import json
import re
from typing import Any

from cpu_backend.gguf.architectures.base import SCORES, SOFTMAX, Architecture
from cpu_backend.gguf.architectures.tensors import (
    ATTENTION,
    EXPERTS,
    FFN_NORM,
    HEAD_NORMS,
    QKV_BIASES,
    Tensor,
    named,
)
from cpu_backend.gguf.reader import GgufFile

SHARED_EXPERT = {
    "ffn_gate_inp_shexp.weight": Tensor("mlp.shared_expert_gate.weight", (1, "hidden"), plain=True)
} | named(
    {
        "ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
        "ffn_up_shexp.weight": "mlp.shared_expert.up_proj.weight",
        "ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
    }
)


class Qwen2(Architecture):
    """Qwen 2 and 2.5: biases of queries, keys and values."""

    class_name = "Qwen2ForCausalLM"
    model_type = "qwen2"

    def layer(self, number: int) -> dict[str, Tensor]:
        return super().layer(number) | named(QKV_BIASES)


class Qwen2Moe(Qwen2):
    """Qwen 1.5 and 2 with experts and a shared one in every layer."""

    class_name = "Qwen2MoeForCausalLM"
    model_type = "qwen2_moe"

    def config(self) -> dict[str, Any]:
        self.check_router(SOFTMAX, normed=False)
        return (
            super().config()
            | self.experts()
            | {
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
                "norm_topk_prob": False,
                "shared_expert_intermediate_size": self.shared_ffn(),
                "use_sliding_window": False,
            }
        )

    def intermediate_size(self) -> int:
        return self.expert_ffn()

    def expert_ffn(self) -> int:
        key = "expert_feed_forward_length"
        if self.has(key):
            return self.size(key)
        return self.size("feed_forward_length") // self.size("expert_used_count")

    def shared_ffn(self) -> int:
        """The width of the shared expert."""
        key = "expert_shared_feed_forward_length"
        return self.size(key if self.has(key) else "feed_forward_length")

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        return super().sizes(layer, config) | {"shared_ffn": self.shared_ffn()}

    def layer(self, number: int) -> dict[str, Tensor]:
        return ATTENTION | FFN_NORM | named(QKV_BIASES) | EXPERTS | SHARED_EXPERT


class Qwen2Vl(Qwen2):
    """The text of Qwen 2 and 2.5 VL: the three positions of a token of text are one."""


MESSAGES = {"query": "{{ messages[0].content }}", "document": "{{ messages[1].content }}"}


def score_template(file: GgufFile) -> str:
    """What a reranker reads of a query and a document, as a chat template; "" if the file does not
    say."""
    text = str(file.get("tokenizer.chat_template.rerank", str, ""))
    parts = re.split(r"\{(query|document)\}", text)
    if text and sorted(parts[1::2]) != ["document", "query"]:
        raise file.error("has a template of rerankers that is not of one query and one document")
    # As literals: what a text means to Jinja, and a line's end at its end, would be lost.
    return "".join(
        MESSAGES[part] if number % 2 else f"{{{{ {json.dumps(part, ensure_ascii=False)} }}}}"
        for number, part in enumerate(parts if text else [])
    )


def first_less_second(rows: Any) -> Any:
    """One row [1, columns] whose sigmoid is the first's share in the softmax of both."""
    return rows[:1] - rows[1:]


class Qwen3(Architecture):
    """Qwen 3: norms of heads; Qwen3-Reranker, whose score is how likely "yes" is beside "no"."""

    class_name = "Qwen3ForCausalLM"
    model_type = "qwen3"

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file)
        if self.ranks:
            self.class_name, self.has_head = "Qwen3ForSequenceClassification", False

    def config(self) -> dict[str, Any]:
        return super().config() | {"attention_bias": False} | (self.scores() if self.ranks else {})

    def scores(self) -> dict[str, Any]:
        """What config.json says of a reranker; score_template: this backend's own word, a chat
        template of a query and a document."""
        words = self.file.get(self.field("classifier.output_labels"), list, [])
        if words not in ([], ["yes", "no"]):
            raise self.refuse('scores texts for other words than "yes" and "no"')
        template = score_template(self.file)
        return {
            "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0},
            "use_sep_token": False,
            **({"score_template": template} if template else {}),
        }

    def outer(self) -> dict[str, Tensor]:
        outer = super().outer()
        if not self.ranks:
            return outer
        score = Tensor("score.weight", (2, "hidden"), values=first_less_second)
        return {name: outer[name] for name in outer if name != "output.weight"} | {SCORES: score}

    def layer(self, number: int) -> dict[str, Tensor]:
        return super().layer(number) | HEAD_NORMS


class Qwen3Moe(Architecture):
    """Qwen 3 with experts in every layer."""

    class_name = "Qwen3MoeForCausalLM"
    model_type = "qwen3_moe"

    def config(self) -> dict[str, Any]:
        self.check_router(SOFTMAX, normed=True)
        return (
            super().config()
            | self.experts()
            | {
                "attention_bias": False,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
                "norm_topk_prob": True,
            }
        )

    def layer(self, number: int) -> dict[str, Tensor]:
        return ATTENTION | FFN_NORM | HEAD_NORMS | EXPERTS


class Qwen3Vl(Qwen3):
    """The text of Qwen 3 VL."""


class Qwen3VlMoe(Qwen3Moe):
    """The text of Qwen 3 VL with experts."""


KNOWN = {
    "qwen2": Qwen2,
    "qwen2moe": Qwen2Moe,
    "qwen2vl": Qwen2Vl,
    "qwen3": Qwen3,
    "qwen3moe": Qwen3Moe,
    "qwen3vl": Qwen3Vl,
    "qwen3vlmoe": Qwen3VlMoe,
}
