"""Small rerankers that read two texts at once, with random weights and tokenizers of their kind."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.zoo.build import build
from tests.zoo.pooling_specs import ABSOLUTE, SCORE, SEQUENCE, PoolingSpec

QUERY = "which town lies on the Spree?"
TEXTS = ["Berlin does.", "Bananas are yellow.", "a", "Paris lies on the Seine, " * 8]
LETTERS = string.ascii_letters + string.digits + ".,?"


def bert_tokenizer() -> Any:
    """Of letters.  The second text's segment is 1."""
    from transformers import BertTokenizer

    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    pieces = (*special, *LETTERS, *(f"##{letter}" for letter in LETTERS))
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})


def xlm_roberta_tokenizer() -> Any:
    """Of letters.  Two tokens lie between the texts; there are no segments."""
    from transformers import XLMRobertaTokenizer

    special = ("<s>", "<pad>", "</s>", "<unk>")
    pieces = [*((token, 0.0) for token in special), *((letter, -1.0) for letter in "▁" + LETTERS)]
    return XLMRobertaTokenizer(vocab=[*pieces, ("<mask>", 0.0)])


KINDS: dict[str, tuple[PoolingSpec, Callable[[], Any]]] = {
    "bert": (
        PoolingSpec("BertForSequenceClassification", "", "bert", SCORE, auto=SEQUENCE),
        bert_tokenizer,
    ),
    "xlm-roberta": (
        PoolingSpec(
            "XLMRobertaForSequenceClassification",
            "",
            "xlm-roberta",
            {
                **ABSOLUTE,
                **SCORE,
                "type_vocab_size": 1,
                "bos_token_id": 0,
                "pad_token_id": 1,
            },
            auto=SEQUENCE,
        ),
        xlm_roberta_tokenizer,
    ),
}


@dataclass(frozen=True)
class Reranker:
    """A checkpoint, and what ``transformers`` makes of it."""

    folder: Path
    model: Any
    tokenizer: Any

    @torch.no_grad()
    def score(self, **inputs: torch.Tensor) -> float:
        """Of one pair, as the model's tensors."""
        return float(self.model(**inputs).logits.sigmoid())

    def scores(self, query: str, texts: list[str], **options: Any) -> list[float]:
        """Of the query beside each text; options: the tokenizer's."""
        told = (self.tokenizer(query, text, return_tensors="pt", **options) for text in texts)
        return [self.score(**inputs) for inputs in told]


def make(kind: str, folder: Path) -> Reranker:
    """One of KINDS, written to ``folder``."""
    spec, make_tokenizer = KINDS[kind]
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    return Reranker(folder, build(spec, folder), tokenizer)
