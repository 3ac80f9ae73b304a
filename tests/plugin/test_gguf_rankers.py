"""GGUF files of models that score texts: what is put around a pair, and templates of rerankers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import numpy as np
import pytest

from cpu_backend.errors import ConfigError
from cpu_backend.gguf.architectures.qwen import first_less_second, score_template
from cpu_backend.gguf.reader import GgufFile
from cpu_backend.gguf.tokenizer import GgufTokenizer
from cpu_backend.host import score_template as in_host
from tests.plugin.gguf_samples import HIDDEN, write_gguf
from tests.plugin.test_gguf_checkpoint import Edit, read

TEMPLATE = 'rules {% if %} "ä"\n<Query>: {query}\n<Document>: {document}<end>\n\n'
TEXTS = ("What is {document}?", "{{ 1 + 1 }} \\n {query}")
NORMAL, UNKNOWN, CONTROL = 1, 2, 3


@pytest.fixture
def file(tmp_path: Path) -> GgufFile:
    write_gguf(tmp_path / "model.gguf")
    return GgufFile(tmp_path / "model.gguf")


def test_a_template_puts_both_texts_where_the_file_says(file: GgufFile) -> None:
    assert score_template(file) == ""
    file.metadata["tokenizer.chat_template.rerank"] = TEMPLATE
    query, document = TEXTS
    # As transformers makes templates.
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    messages = [{"content": query}, {"content": document}]
    found = environment.from_string(score_template(file)).render(messages=messages)
    before, between = TEMPLATE.split("{query}")
    between, after = between.split("{document}")
    assert found == before + query + between + document + after


@pytest.mark.parametrize("text", ["{query}", "{document}", "{query}{query}{document}", "none"])
def test_a_template_without_both_texts_is_refused(file: GgufFile, text: str) -> None:
    file.metadata["tokenizer.chat_template.rerank"] = text
    with pytest.raises(ConfigError, match="one query and one document"):
        score_template(file)


def test_the_host_takes_the_template_unless_it_is_given_one() -> None:
    seen = []
    method = in_host.of_checkpoint(lambda *args, **kwargs: seen.append((args[1:], kwargs)))
    for config in (SimpleNamespace(score_template="ours"), SimpleNamespace()):
        scorer = SimpleNamespace(model_config=SimpleNamespace(hf_config=config))
        method(scorer, "q", "d", encode_kwargs={}, chat_template=None, max_tokens_per_doc=3)
        method(scorer, "q", "d", {}, "theirs")
    limits = {"max_tokens_per_doc": 3}
    assert seen == [
        (("q", "d", {}, "ours"), limits),
        (("q", "d", {}, "theirs"), {}),
        (("q", "d", {}, None), limits),
        (("q", "d", {}, "theirs"), {}),
    ]


def reranker(words: Any, rows: int = 2) -> Edit:
    def edit(fields: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        fields |= {"qwen3.pooling_type": 4, "qwen3.classifier.output_labels": words}
        for name in dict(tensors):
            if name.endswith("attn_norm.weight"):
                block = name.removesuffix("attn_norm.weight")
                for part in "qk":
                    tensors[f"{block}attn_{part}_norm.weight"] = np.ones(16)
        tensors["cls.output.weight"] = np.arange(rows * HIDDEN).reshape(rows, HIDDEN)

    return edit


def test_a_score_is_what_yes_has_more_than_no(tmp_path: Path) -> None:
    checkpoint = read(tmp_path, reranker(["yes", "no"]), "qwen3")
    assert checkpoint.config["architectures"] == ["Qwen3ForSequenceClassification"]
    assert checkpoint.config["id2label"] == {"0": "LABEL_0"}
    assert not checkpoint.packs_table
    score = checkpoint.values(checkpoint.entries["score.weight"])
    assert score.shape == (1, HIDDEN)
    assert (score == -HIDDEN).all()
    assert first_less_second(np.array([[5.0], [2.0]])).tolist() == [[3.0]]


@pytest.mark.parametrize(
    ("words", "rows", "sentence"),
    [
        (["no", "yes"], 2, 'for other words than "yes" and "no"'),
        (["yes", "no"], 3, "cls.output.weight"),
    ],
)
def test_other_scores_are_refused(tmp_path: Path, words: Any, rows: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read(tmp_path, reranker(words, rows), "qwen3")


def test_a_model_of_ranks_without_scores_is_refused(tmp_path: Path) -> None:
    def edit(fields: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        del tensors
        fields["llama.pooling_type"] = 4

    with pytest.raises(ConfigError, match=r"has no tensor 'cls\.output\.weight' for that"):
        read(tmp_path, edit)


def test_bert_without_the_layer_that_converters_drop_is_refused(tmp_path: Path) -> None:
    def edit(fields: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        del fields
        tensors["cls.output.weight"] = np.ones((1, HIDDEN))

    with pytest.raises(ConfigError, match="leaves out of BERT"):
        read(tmp_path, edit, "bert")


def pair(file: GgufFile, **fields: Any) -> tuple[list[str], list[int]]:
    """The tokens of two texts, and which of them are told apart."""
    file.metadata |= {f"tokenizer.ggml.{key}": value for key, value in fields.items()}
    made = GgufTokenizer(file)
    encoding = made.tokenizer.encode("a", "b")
    assert ("model_input_names" in made.settings(9)) == (made.model != "bert")
    return encoding.tokens, encoding.type_ids


def vocabulary(tokens: dict[str, int], **fields: Any) -> dict[str, Any]:
    return {"tokens": list(tokens), "token_type": np.array(list(tokens.values())), **fields}


def test_pairs_of_bert(file: GgufFile) -> None:
    tokens = dict.fromkeys(("[PAD]", "[UNK]", "[CLS]", "[SEP]"), CONTROL)
    tokens |= dict.fromkeys(("▁a", "▁b"), NORMAL)
    numbers = {"bos_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1}
    found = pair(file, model="bert", **vocabulary(tokens, **numbers))
    assert found == (["[CLS]", "a", "[SEP]", "b", "[SEP]"], [0, 0, 0, 1, 1])


def test_pairs_of_xlm_roberta(file: GgufFile) -> None:
    tokens = {"<s>": CONTROL, "<pad>": CONTROL, "</s>": CONTROL, "<unk>": UNKNOWN}
    tokens |= dict.fromkeys(("▁", "▁a", "▁b"), NORMAL)
    numbers = {"bos_token_id": 0, "eos_token_id": 2, "unknown_token_id": 3, "padding_token_id": 1}
    fields = {"model": "t5", "scores": np.array([0.0] * 5 + [-1.0] * 2), "add_space_prefix": True}
    both = {"add_bos_token": True, "add_eos_token": True}
    texts = vocabulary(tokens, **numbers, **fields, **both)
    doubled = ["<s>", "▁a", "</s>", "</s>", "▁b", "</s>"]
    assert pair(file, **texts) == (doubled, [0] * 6)
    assert pair(file, **texts, add_sep_token=True)[0] == doubled
    assert pair(file, **texts, add_sep_token=False)[0] == ["<s>", "▁a", "</s>", "▁b", "</s>"]


def test_pairs_of_roberta_and_modern_bert(file: GgufFile) -> None:
    bos, eos = file.metadata["tokenizer.ggml.tokens"][1:3]
    both = {"merges": [], "add_bos_token": True, "add_eos_token": True}
    assert pair(file, pre="roberta-bpe", **both)[0] == [bos, "a", eos, eos, "b", eos]
    assert pair(file, pre="modern-bert", **both)[0] == [bos, "a", eos, "b", eos]
    assert pair(file, pre="modern-bert", **both, add_sep_token=True)[0] == [
        *(bos, "a", eos, eos, "b", eos),
    ]
