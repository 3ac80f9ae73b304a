"""Tokenizers of GGUF files: how text is split, the kinds of vocabularies, special tokens.

What is expected was made once with llama.cpp. Where its regex engine cannot follow (capitals
within words, combining marks, digits before a letter) it is what the models' own expressions say.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from cpu_backend.errors import ConfigError
from cpu_backend.gguf import folder
from cpu_backend.gguf.reader import GgufFile
from cpu_backend.gguf.splits import SPLITS
from cpu_backend.gguf.tokenizer import GgufTokenizer
from cpu_backend.gguf.vocabulary import ends
from tests.plugin.gguf_samples import byte_alphabet, write_gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TEXTS = (
    "Don't WE'LL l'test 12345 a1b a.b?(c) +=x!/\n\n  \tété 中文ひら한국,\r\n ½ x    y \n",
    "camelCase हिन्दी",
)
# Names, and the pieces of both texts.
PIECES = (
    (
        "default",
        "Don|'|t| WE|'|LL| l|'|test| |123|45| a|1|b| a|.|b|?(|c|)| |+=|x|!/|\n\n  |\t|été| "
        "中文ひら한국|,|\r\n| |½| x|   | y| \n",
        "camelCase| ह|ि|न|्|द|ी",
    ),
    (
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum jina-v1-en "
        "jina-v2-code roberta-bpe exaone4 jais trillion granite-docling mpt olmo modern-bert",
        "Don|'t| WE|'|LL| l|'t|est| 12345| a|1|b| a|.|b|?(|c|)| +=|x|!/|\n\n  |\t|été| 中文ひら"
        "한국|,|\r\n| ½| x|   | y| \n",
        "camelCase| ह|ि|न|्|द|ी",
    ),
    (
        "starcoder refact smollm codeshell exaone minerva-7b mellum2 command-r",
        "Don|'t| WE|'|LL| l|'t|est| |1|2|3|4|5| a|1|b| a|.|b|?(|c|)| +=|x|!/|\n\n  |\t|été|"
        " 中文ひら한국|,|\r\n |½| x|   | y| \n",
        "camelCase| ह|ि|न|्|द|ी",
    ),
    (
        "falcon",
        "Don|'|t| WE|'|LL| l|'|test| |123|45| a|1|b| a|.|b|?(|c|)| |+=|x|!/|\n\n  |\t|été| "
        "中文ひら한국|,|\r\n| ½| x|   | y| \n",
        "camelCase| ह|ि|न|्|द|ी",
    ),
    (
        "bloom gpt3-finnish poro-chat",
        "Don't| WE'LL| l'test| 12345| a1b| a|.|b|?(|c|)| +=x|!|/|\n\n  \t|été| 中文ひら한국|,\r\n"
        "| ½| x|   | y| \n",
        "camelCase| हिन्दी",
    ),
    (
        "viking",
        "Don't| WE'LL| l'test| |1|2|3|4|5| a|1|b| a|.|b|?(|c|)| +=x|!|/|\n\n  \t|été| 中文ひら한"
        "국|,\r\n| |½| x|   | y| \n",
        "camelCase| हिन्दी",
    ),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx "
        "smaug-bpe chatglm-bpe glm4 glm5 minicpm5",
        "Don|'t| WE|'LL| l|'t|est| |123|45| a|1|b| a|.b|?(|c|)| +=|x|!/\n\n|  |\tété| 中文ひら한"
        "국|,\r\n| |½| x|   | y| \n",
        "camelCase| ह|िन|्द|ी",
    ),
    (
        "jais-2",
        "Don|'t| WE|'LL| l|'t|est| |123|45| a|1|b| a|.b|?(|c|)| +=|x|!/\n\n|  |\tété| 中文ひら한"
        "국|,\r\n| |½| x|  | | y| \n",
        "camelCase| ह|िन|्द|ी",
    ),
    (
        "qwen2 deepseek-r1-qwen f2llmv2 stablelm2 kormo megrez hunyuan solar-open grok-2 "
        "bailingmoe bailingmoe2 llada-moe",
        "Don|'t| WE|'LL| l|'t|est| |1|2|3|4|5| a|1|b| a|.b|?(|c|)| +=|x|!/\n\n|  |\tété| 中文"
        "ひら한국|,\r\n| |½| x|   | y| \n",
        "camelCase| ह|िन|्द|ी",
    ),
    (
        "qwen35",
        "Don|'t| WE|'LL| l|'t|est| |1|2|3|4|5| a|1|b| a|.b|?(|c|)| +=|x|!/\n\n|  |\tété| 中文"
        "ひら한국|,\r\n| |½| x|   | y| \n",
        "camelCase| हिन्दी",
    ),
    (
        "ufakzeka",
        "Don|'t| WE|'LL| l|'test| |1|2|3|4|5| a|1|b| a|.b|?(|c|)| +=|x|!/\n\n|  |\tété| 中文ひ"
        "ら한국|,\r\n| |½| x|   | y| \n",
        "camelCase| ह|िन|्द|ी",
    ),
    (
        "laguna",
        "Don|'t| WE|'LL| l|'t|est| |1|2|3|4|5| a|1|b| a|.b|?(|c|)| +=|x|!/|\n\n|  |\tété| 中"
        "文ひら한국|,\r|\n| |½| x|   | y| |\n",
        "camelCase| ह|िन|्द|ी",
    ),
    (
        "seed-coder",
        "Don|'t| WE|'LL| l|'t|est| |1|2|3|4|5| a|1|b| a|.b|?(|c|)| +=|x|!/|\n\n|  |\tété| 中"
        "文ひら한국|,|\r\n| |½| x|   | y| \n",
        "camelCase| ह|िन|्द|ी",
    ),
    (
        "exaone-moe",
        "Don|'t| WE|'LL| l|'t|est| |1|2|3|4|5| a|1|b a|.b|?(|c|)| +=|x|!/\n|\n|  |\tété 中文ひ"
        "ら한국|,\r|\n| |½| x|   | y| \n",
        "camelCase हिन्दी",
    ),
    (
        "tekken",
        "Don|'t| WE|'LL| l|'test| |1|2|3|4|5| a|1|b| a|.b|?(|c|)| +=|x|!/\n\n|  |\tété| 中文ひ"
        "ら한국|,\r\n| |½| x|   | y| \n",
        "camel|Case| हिन्दी",
    ),
    (
        "gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m",
        "Don't| WE'LL| l't|est| |123|45| a|1|b| a|.b|?(|c|)| +=|x|!/\n\n|  |\tété| 中文ひら한국|,"
        "\r\n| |½| x|   | y| \n",
        "camel|Case| हिन्दी",
    ),
    (
        "tiny_aya cohere2moe",
        "Don't| WE'LL| l't|est| |12|345| a|1|b| a|.b|?(|c|)| +=|x|!/\n\n|  |\tété| 中文ひら한국|,"
        "\r\n| |½| x|   | y| \n",
        "camel|Case| हिन्दी",
    ),
    (
        "kimi-k2",
        "Don't| WE'LL| l't|est| |123|45| a|1|b| a|.b|?(|c|)| +=|x|!/\n\n|  |\tété| |中文|ひら한국"
        "|,\r\n| |½| x|   | y| \n",
        "camel|Case| हिन्दी",
    ),
    (
        "youtu",
        "Don't| WE'LL| l't|est| |1|2|3|4|5| a|1|b| a|.b|?(|c|)| +=|x|!/\n\n|  |\tété| |中文ひら"
        "|한국|,\r\n| |½| x|   | y| \n",
        "camel|Case| हिन्दी",
    ),
    (
        "deepseek-llm",
        "Don|'|t| WE|'|LL| l|'|test| |1|2|3|4|5| a|1|b| a|.|b|?(|c|)| +=|x|!/|\n|\n|  |\té|"
        "t|é| |中文ひら한국|,|\r|\n| |½| x|   | y| |\n",
        "camelCase| |हिन्दी",
    ),
    (
        "deepseek-coder",
        "Don|'|t| WE|'|LL| l|'|test| |1|2|3|4|5| a|1|b| a|.|b|?(|c|)| +=|x|!/|\n|\n|  |\tét"
        "é| |中文ひら한국|,|\r|\n| |½| x|   | y| |\n",
        "camelCase| |ह|ि|न|्|द|ी",
    ),
    (
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        "Don|'t| WE|'LL| l|'test| |123|45| a|1|b| a|.b|?(|c|)| +=|x|!/\n\n|  |\tété| |中文ひら|"
        "한국|,\r\n| |½| x|   | y| \n",
        "camelCase| हिन्दी",
    ),
    (
        "spark2_5",
        "Don|'t| WE|'LL| l|'test| |1|2|3|4|5| a|1|b| a|.b|?(|c|)| +=|x|!/|\n|\n|  |\tété| |"
        "中文ひら|한국|,|\r|\n| |½| x|   | y| \n",
        "camelCase| हिन्दी",
    ),
    (
        "afmoe",
        "Don|'t| WE|'LL| l|'test| |12|345| a|1|b| a|.b|?(|c|)| +=|x|!/\n\n|  |\tété| |中文ひら한"
        "국|,\r\n| |½| x|   | y| \n",
        "camelCase| हिन्दी",
    ),
    (
        "superbpe",
        "Don't WE'LL l'test |12|345| a|1|b a.b?(c) +=x!/\n\n  \tété 中文ひら한국,\r\n |½| x    y "
        "\n",
        "camelCase हिन्दी",
    ),
    (
        "chameleon",
        "Don|'|t| WE|'|LL| l|'|test| |1|2|3|4|5| a|1|b| a|.|b|?|(|c|)| |+|=|x|!|/|\n|\n|  |"
        "\t|été| 中文ひら한국|,|\r|\n| |½| x|    |y| |\n",
        "camelCase| ह|ि|न|्|द|ी",
    ),
    (
        "gemma4 granite-embed-multi-311m sarvam-moe",
        "Don't WE'LL l'test 12345 a1b a.b?(c) +=x!/|\n\n|  \tété 中文ひら한국,\r|\n| ½ x    y |\n",
        "camelCase हिन्दी",
    ),
)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path)
    return path


def with_fields(sample: Path, **fields: Any) -> GgufFile:
    """The small model's file with other fields of ``tokenizer.ggml``; None removes one."""
    file = GgufFile(sample)
    for key, value in fields.items():
        name = "general.name" if key == "name" else f"tokenizer.ggml.{key}"
        if value is None:
            file.metadata.pop(name, None)
        else:
            file.metadata[name] = np.array(value) if key in ("token_type", "scores") else value
    return file


def with_tokens(sample: Path, tokens: dict[str, int], **fields: Any) -> GgufFile:
    """A file with the given tokens and their types; for BPE beside all bytes, from 0 on."""
    start = byte_alphabet() if fields.get("model", "gpt2") == "gpt2" else []
    types = [NORMAL] * len(start) + list(tokens.values())
    none = dict.fromkeys(("bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id"))
    more = {"merges": [], "add_bos_token": None} | none | fields
    return with_fields(sample, tokens=[*start, *tokens], token_type=types, **more)


def encode(file: GgufFile, text: str, special: bool = False) -> list[str]:
    made = GgufTokenizer(file).tokenizer
    return [made.id_to_token(id) for id in made.encode(text, add_special_tokens=special).ids]


@pytest.mark.parametrize(
    ("names", "first", "second"), PIECES, ids=[p[0].split()[0] for p in PIECES]
)
def test_text_is_split_as_in_training(sample: Path, names: str, first: str, second: str) -> None:
    for name in names.split():
        split = GgufTokenizer(with_fields(sample, pre=name)).tokenizer.pre_tokenizer
        for text, pieces in zip(TEXTS, (first, second), strict=True):
            found = [text[start:end] for _, (start, end) in split.pre_tokenize_str(text)]
            assert "|".join(found) == pieces, name


def test_every_split_is_tried() -> None:
    assert sorted(SPLITS) == sorted(" ".join(names for names, *_ in PIECES).split())


def test_files_from_before_splits_had_names(sample: Path) -> None:
    with pytest.raises(ConfigError, match="in the way 'missing'"):
        GgufTokenizer(with_fields(sample, pre=None))
    file = with_fields(sample, pre=None)
    file.metadata["general.architecture"] = "qwen2"
    assert encode(file, "12") == ["1", "2"]
    assert encode(file, "e\u0301") == encode(file, "é")  # composed first


def test_what_is_put_around_a_text(sample: Path) -> None:
    def around(**fields: Any) -> list[str]:
        return encode(with_fields(sample, add_bos_token=None, **fields), "1", special=True)

    bos, eos = with_fields(sample).metadata["tokenizer.ggml.tokens"][1:3]
    assert around(pre="qwen2") == ["1"]
    for name in ("llama-bpe", "tekken", "chameleon"):
        assert around(pre=name) == [bos, "1"]
    assert around(pre="qwen2", add_eos_token=True) == ["1", eos]
    file = with_fields(sample, pre="llama-bpe", add_bos_token=False, add_eos_token=True)
    assert encode(file, "1", special=True) == ["1", eos]
    pair = GgufTokenizer(with_fields(sample, pre="tekken", add_bos_token=None)).tokenizer
    assert pair.encode("1", "1").tokens == [bos, "1", bos, "1"]


def test_a_piece_that_is_a_token_stays_whole_where_it_did_in_training(sample: Path) -> None:
    tokens = dict.fromkeys(("ab", "abc"), NORMAL)
    for name, expected in (("llama-bpe", ["abc"]), ("gpt-2", ["ab", "c"])):
        assert encode(with_tokens(sample, tokens, pre=name, merges=["a b"]), "abc") == expected


def test_plain_letters_that_look_like_stand_ins_for_bytes_are_written_as_they_are(
    sample: Path,
) -> None:
    tokens = [token for token in byte_alphabet() if token != "ö"]
    file = with_tokens(sample, {}, pre="deepseek-llm")
    file.metadata |= {
        "tokenizer.ggml.tokens": [*tokens, "ö"],
        "tokenizer.ggml.token_type": np.array([NORMAL] * 255 + [USER_DEFINED]),
    }
    made = GgufTokenizer(file).tokenizer
    assert made.encode("xöy").tokens == ["x", "ö", "y"]
    assert made.decode(made.encode("xöyéü").ids) == "xöyéü"


def test_tokens_without_text_keep_their_places(sample: Path) -> None:
    file = with_tokens(sample, {"": UNUSED, "<|a|>": CONTROL}, pre="gpt-2")
    file.metadata["tokenizer.ggml.tokens"].insert(0, "")
    file.metadata["tokenizer.ggml.token_type"] = np.ones(
        len(file.metadata["tokenizer.ggml.tokens"])
    )
    made = GgufTokenizer(file).tokenizer
    assert made.token_to_id("!") == 1
    assert made.get_vocab_size() == 259


PIECES_OF_GEMMA = {
    **dict.fromkeys(("<pad>", "<eos>", "<bos>"), CONTROL),
    "<unk>": UNKNOWN,
    **dict.fromkeys(BYTES, BYTE),
    **dict.fromkeys(("  ", "   ", "\n\n"), USER_DEFINED),
    **dict.fromkeys(("▁", "a", "b", "\n", "▁a", "ab", "▁ab"), NORMAL),
}
OF_GEMMA = {"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3}


def test_sentencepiece_as_in_gemma(sample: Path) -> None:
    scores = [0.0] * (len(PIECES_OF_GEMMA) - 3) + [-2.0, -1.0, -3.0]
    file = with_tokens(
        sample, PIECES_OF_GEMMA, model="llama", scores=scores, add_space_prefix=False, **OF_GEMMA
    )
    text = "ab ab   a    b\n\n\né"
    expected = [
        *("<bos>", "ab", "▁ab", "   ", "a", "   ", "▁", "b", "\n\n", "\n", "<0xC3>", "<0xA9>"),
    ]
    assert encode(file, text, special=True) == expected
    made = GgufTokenizer(file).tokenizer
    assert made.decode(made.encode(text).ids) == text


def test_characters_with_merges_as_in_gemma_4(sample: Path) -> None:
    file = with_tokens(
        *(sample, PIECES_OF_GEMMA), model="gemma4", pre=None, merges=["a b", "▁ ab"], **OF_GEMMA
    )
    file.metadata["tokenizer.ggml.add_bos_token"] = False  # which is not true of the model
    assert encode(file, "ab ab\n\té", special=True) == [
        *("<bos>", "ab", "▁ab", "\n", "<0x09>", "<0xC3>", "<0xA9>"),
    ]
    made = GgufTokenizer(file).tokenizer
    assert made.decode(made.encode("ab é").ids) == "ab é"


def test_special_tokens_of_phi_3_swallow_spaces(sample: Path) -> None:
    tokens = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL, "<|end|>": CONTROL}
    tokens |= dict.fromkeys(("▁", "a"), NORMAL)
    file = with_tokens(sample, tokens, model="llama", name="Phi-3 mini")
    assert encode(file, "a<|end|>\n  a<s> a", special=True) == [
        *("<s>", "▁", "a", "<|end|>", "▁", "a", "<s>", "▁", "▁", "a"),
    ]


def test_longest_pieces_of_words(sample: Path) -> None:
    tokens = dict.fromkeys(("[PAD]", "[UNK]", "[CLS]", "[SEP]"), CONTROL)
    tokens |= dict.fromkeys(("▁un", "able", "▁able", "▁!", "▁cafe"), NORMAL)
    numbers = {"bos_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1}
    file = with_tokens(sample, tokens, model="bert", **numbers)
    assert encode(file, "Unable able! Café so", special=True) == [
        *("[CLS]", "un", "##able", "able", "!", "cafe", "[UNK]", "[SEP]"),
    ]


def test_likeliest_pieces(sample: Path) -> None:
    tokens = {"<pad>": CONTROL, "</s>": CONTROL, "<unk>": UNKNOWN}
    tokens |= dict.fromkeys(("▁", "a", "b", "▁a", "ab"), NORMAL)
    scores = [0.0, 0.0, 0.0, -2.0, -3.0, -3.0, -4.0, -3.5]
    fields = {"model": "t5", "scores": scores, "add_space_prefix": True}
    file = with_tokens(sample, tokens, remove_extra_whitespaces=True, **fields)
    assert encode(file, "ab   ab c ", special=True) == [
        *("▁", "ab", "▁", "ab", "▁", "<unk>", "</s>"),
    ]
    file = with_tokens(sample, tokens, **fields)
    assert encode(file, "a  a") == ["▁a", "▁", "▁a"]


def found_ends(sample: Path, *tokens: str, kind: int = CONTROL, **fields: Any) -> list[str]:
    file = with_tokens(sample, dict.fromkeys(tokens, kind), pre="gpt-2", **fields)
    return [file.metadata["tokenizer.ggml.tokens"][index] for index in ends(file)]


def test_tokens_that_end_an_answer(sample: Path) -> None:
    assert found_ends(sample, "<|im_start|>", "<|im_end|>", "<|endoftext|>") == [
        *("<|im_end|>", "<|endoftext|>"),
    ]
    numbers = {"eos_token_id": 256, "eot_token_id": 257, "eom_token_id": 258}
    assert found_ends(sample, "<a>", "<b>", "<c>", "<d>", **numbers) == ["<a>", "<b>", "<c>"]
    assert found_ends(sample, "<a>", eos_token_id=99999) == []
    assert found_ends(sample, "<|fim_pad|>", "<|fim_middle|>", "<reponame>") == [
        *("<|fim_pad|>", "<reponame>"),
    ]
    # Messages end with "<|end|>", after which a model that calls tools may go on.
    assert found_ends(sample, "<|end|>") == ["<|end|>"]
    assert found_ends(sample, "<|end|>", "<|call|>", "<|return|>") == ["<|call|>", "<|return|>"]
    assert found_ends(sample, "<|end|>", "<|calls|>", "<|flush|>") == ["<|calls|>", "<|flush|>"]
    assert found_ends(sample, "</s>", "<|tool_response>") == ["<|tool_response>"]


def test_tokens_that_end_an_answer_are_special_whatever_their_type(sample: Path) -> None:
    tokens = dict.fromkeys(("<|im_end|>", "<fim-prefix>", "</s>"), NORMAL)
    made = GgufTokenizer(with_tokens(sample, tokens, pre="gpt-2"))
    assert made.tokenizer.encode("a<|im_end|><fim-prefix>").tokens == [
        *("a", "<|im_end|>", "<fim-prefix>"),
    ]
    assert made.tokenizer.decode(made.ends()) == "</s>"
    assert made.tokenizer.encode("</s>").tokens == ["<", "/", "s", ">"]


def test_the_host_knows_the_ends_and_surrounds_texts(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(folder, "GgufFile", lambda path: with_fields(path, **fields))
    tokens = with_fields(sample).metadata["tokenizer.ggml.tokens"]
    tokens[-1] = "<|eot_id|>"
    fields = {"tokens": tokens, "merges": [], "add_bos_token": True, "add_eos_token": True}
    for with_tokenizer in (True, False):
        made = folder.model_folder(sample, with_tokenizer)
        generation = json.loads((made / "generation_config.json").read_text())
        assert generation["eos_token_id"] == [0, 2, len(tokens) - 1]
    host = AutoTokenizer.from_pretrained(folder.model_folder(sample))
    assert host("1").input_ids == [1, tokens.index("1"), 2]
    assert host("1", add_special_tokens=False).input_ids == [tokens.index("1")]
