"""How tokenizers of GGUF files split text before merging, by the name that the file gives.

The name is ``tokenizer.ggml.pre``. The regular expressions are those of the published
tokenizer.json files, or of the models' tiktoken code. Where a name has several, each is applied to
the pieces that the one before left. Beside them stand the other facts that go with a name and that
files leave out.

Differences from llama.cpp, whose own expressions avoid what its regex engine cannot do:

* It knows no case outside of ASCII and takes combining marks for signs in expressions that look at
  capitals (O200K, TEKKEN), and no case at all in KIMI and YOUTU. Here words are cut as in training.
* Digits grouped from the right (AFMOE, tiny_aya) are cut together with the text before them there,
  and before letters, too, where tiny_aya's own expression counts from the left.
* Spaces and digits beyond ASCII are not in its "\\s" and "\\d" beside ranges of characters
  (DEEPSEEK, DEEPSEEK_CODER, superbpe).
* DEEPSEEK has its digits apart; there they stay together, but no token has two of them.
* Some tokenizers bring text into NFC first; it does not.
"""

from __future__ import annotations

from dataclasses import dataclass

DIGIT, THREE_DIGITS = r"\p{N}", r"\p{N}{1,3}"
_SHORT = "'s|'t|'re|'ve|'m|'ll|'d"  # English contractions
_ANY_SHORT = f"(?i:{_SHORT})"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = rf"\s*[\r\n]+|{_SPACES}"
_CONTRACTED = _ANY_SHORT + "|"

GPT2 = rf"{_SHORT}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"


def _words(digits: str, start: str = _CONTRACTED, spaces: str = _LINES) -> str:
    """Words with the sign before them, digits, signs with the ends of lines after them."""
    return (
        rf"{start}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{spaces}"
    )


LLAMA3, QWEN2 = _words(THREE_DIGITS), _words(DIGIT)
QWEN35 = (
    rf"{_CONTRACTED}[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
)
JAIS2 = _words(
    THREE_DIGITS,
    spaces=r"\s*[\r\n]+|"
    + "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"|\s{1,2}(?!\S)|\s{1}",
)
SEED_CODER = (
    rf"{_CONTRACTED}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}"
)
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    rf"|\s*[\r\n]|{_SPACES}"
)
EXAONE_MOE = (
    rf"{_CONTRACTED}[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}"
)


def _cased(
    digits: str, end: str = _ANY_SHORT + "?", without: str = "", line: str = r"[\r\n/]*"
) -> str:
    """Words that end where a capital follows a small letter, too; signs and digits as above."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{before}{upper}*{lower}+{end}|{before}{upper}+{lower}*{end}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+{line}|{_LINES}"
    )


O200K, TEKKEN = _cased(THREE_DIGITS), _cased(DIGIT, end="")
KIMI = r"\p{Han}+|" + _cased(THREE_DIGITS, without=r"&&[^\p{Han}]", line=r"[\r\n]*")

_SIGNED = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
_KANJI_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK3 = (THREE_DIGITS, _KANJI_KANA, rf"{_SIGNED}[\r\n]*|{_LINES}")
SPARK = (THREE_DIGITS, _KANJI_KANA, rf"{_SIGNED}|[\r\n]|{_SPACES}", DIGIT)
# Groups of three from the right: the rest first, which keeps the time linear in the digits.
_DIGITS_FROM_RIGHT = (r"\p{N}+", r"\A\p{N}{1,2}(?=(?:\p{N}{3})*\z)", r"\p{N}{3}")
AFMOE = (
    *_DIGITS_FROM_RIGHT,
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
    "\u1100-\u11ff]+",
    DEEPSEEK3[-1],
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# Letters with case: Latin, Greek, Cyrillic, Armenian, Georgian and others.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
DEEPSEEK = (
    r"[\r\n]",
    rf"\s?[{_CASED_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _CJK,
    DIGIT,
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, DIGIT)
YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    _cased(DIGIT),
)
FALCON = (r"[\p{P}$+<=>^~|`]+", GPT2, r"[0-9][0-9][0-9]")
# What a file means that was made without knowing its tokenizer.
DEFAULT = (r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
CHAMELEON = (
    r"<sentinel:[0-9]+>",
    r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    DIGIT,
    r"[\p{P}!-/:-@\[-`{-~]",
    GPT2,
)
LINES_APART = r"[^\n]+|\n+"


@dataclass(frozen=True)
class Split:
    """Regular expressions, and what else goes with them."""

    patterns: tuple[str, ...]
    whole: bool = False  # a piece that is a token stays whole, whatever the merges say
    adds_bos: bool = False  # unless the file says otherwise
    composes: bool = False  # text is brought into NFC first
    raw: bool = False  # merges are of characters, with "\u2581" for spaces, instead of bytes


def _table() -> dict[str, Split]:
    table: dict[str, Split] = {}

    def put(names: str, *patterns: str, **options: bool) -> None:
        split = Split(patterns, **options)
        table.update(dict.fromkeys(names.split(), split))

    put("default", *DEFAULT)
    put("gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum", GPT2)
    put("jina-v1-en jina-v2-code roberta-bpe exaone4 jais trillion granite-docling", GPT2)
    put("mpt olmo modern-bert", GPT2, composes=True)
    put("starcoder refact smollm codeshell exaone minerva-7b mellum2", DIGIT, GPT2)
    put("command-r", DIGIT, GPT2, composes=True)
    put("falcon", *FALCON)
    put("bloom gpt3-finnish poro-chat", BLOOM)
    put("viking", BLOOM, DIGIT)
    put("llama3 llama-v3 llama-bpe falcon3 falcon-h1", LLAMA3, whole=True, adds_bos=True)
    put("pixtral midm-2.0 lfm2 jina-v5-nano", LLAMA3, whole=True, adds_bos=True)
    put("dbrx smaug-bpe chatglm-bpe", LLAMA3)
    put("glm4 glm5", LLAMA3, whole=True)
    put("minicpm5", THREE_DIGITS, _words(r"\p{N}+"), whole=True)
    put("jais-2", JAIS2)
    put("qwen2 deepseek-r1-qwen f2llmv2 stablelm2", QWEN2, composes=True)
    put("kormo megrez hunyuan solar-open grok-2", QWEN2)
    put("qwen35", QWEN35, composes=True)
    put("ufakzeka", _words(DIGIT, start=""))
    put("laguna", LINES_APART, QWEN2)
    put("seed-coder", SEED_CODER)
    put("bailingmoe bailingmoe2 llada-moe", BAILING)
    put("exaone-moe", EXAONE_MOE)
    put("tekken", TEKKEN, whole=True, adds_bos=True)
    put("gpt-4o llama4 kanana2 talkie minimax-m2", O200K)
    put("granite-embed-multi-97m", O200K, whole=True)
    put("tiny_aya cohere2moe", r"\d{1,3}(?=(?:\d{3})*\b)", O200K)
    put("kimi-k2", KIMI)
    put("youtu", *YOUTU, whole=True)
    put("deepseek-llm", *DEEPSEEK)
    put("deepseek-coder", *DEEPSEEK_CODER)
    put("deepseek-v3 hunyuan-dense joyai-llm hy_v4", *DEEPSEEK3)
    put("spark2_5", *SPARK)
    put("afmoe", *AFMOE)
    put("superbpe", r"\p{N}+", r"(?=(\d{3})+(?!\d))")
    put("chameleon", *CHAMELEON, adds_bos=True)
    put("gemma4 granite-embed-multi-311m", LINES_APART, raw=True, adds_bos=True)
    put("sarvam-moe", LINES_APART, raw=True)
    return table


SPLITS = _table()

# Files made before names were written: the one tokenizer that models of an architecture had.
BY_ARCHITECTURE = {
    "gpt2": "gpt-2",
    "phi2": "phi-2",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2",
    "falcon": "falcon",
    "mpt": "mpt",
    "gptneox": "olmo",
    "bloom": "bloom",
    "starcoder": "starcoder",
    "starcoder2": "starcoder",
    "command-r": "command-r",
    "refact": "refact",
}
