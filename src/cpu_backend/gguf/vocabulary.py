"""The tokens of a GGUF file: their texts and types, and which of them play a part.

Files leave much unsaid, above all which tokens end an answer: converters write one of them, while
chats end with another. So parts are also found by the texts of tokens, as llama.cpp finds them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cpu_backend.errors import ConfigError
from cpu_backend.gguf.reader import GgufFile

TOKENIZER = "pass the original model's with --tokenizer"

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # types of tokens

# Parts of tokens that files of a kind leave out.
DEFAULTS = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "bert": {"bos": 101, "unknown": 100, "seperator": 102, "padding": 0, "mask": 103},
    "t5": {"eos": 1, "unknown": 2, "padding": 0},
}

BAR = "\uff5c"  # in the texts of DeepSeek's tokens

# Texts of tokens that end an answer.
ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>"),
    *("<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"),
    *("<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>"),
    *(f"<{BAR}end▁of▁sentence{BAR}>", "[e~["),
)

# Texts of tokens around code to be filled in, the first of a part that is there. Those of the
# upper three end an answer: no code goes on past the end of a file.
FILLING_ENDS = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
FILLING = FILLING_ENDS | {
    "fim_pre": (
        *(
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            f"<{BAR}fim▁begin{BAR}>",
            "<PRE>",
            "▁<PRE>",
        ),
        *("<|code_prefix|>", "<|prefix|>"),
    ),
    "fim_suf": (
        *(
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            f"<{BAR}fim▁hole{BAR}>",
            "<SUF>",
            "▁<SUF>",
        ),
        *("<|code_suffix|>", "<|suffix|>"),
    ),
    "fim_mid": (
        *(
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            f"<{BAR}fim▁end{BAR}>",
            "<MID>",
            "▁<MID>",
        ),
        *("<|code_middle|>", "<|middle|>"),
    ),
}
OLD_NAMES = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}


# Makes of the ids of tokens new names of some of them.
Renamed = Callable[[dict[str, int]], dict[int, str]]


class Vocabulary:
    """``tokens`` and their ``types`` by id; raises ConfigError where a file contradicts itself.

    renamed: the tokens that are to be special ones under other names.
    """

    def __init__(self, file: GgufFile, renamed: Renamed | None = None) -> None:
        self.file = file
        self.model = str(file.get("tokenizer.ggml.model", str, "missing"))
        texts: list[str] = file.get("tokenizer.ggml.tokens", list)
        # A token without text cannot be met, but keeps its id; so does each of several.
        self.tokens = [text or f"[EMPTY_{index}]" for index, text in enumerate(texts)]
        self.ids = {text: index for index, text in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            raise file.error("has a token twice in its vocabulary", TOKENIZER)
        self.types = self.numbers("token_type", [NORMAL] * len(self.tokens))
        for index, text in (renamed(self.ids) if renamed else {}).items():
            del self.ids[self.tokens[index]]
            self.tokens[index], self.ids[text], self.types[index] = text, index, CONTROL
        self._filling = {part: self._filling_token(part) for part in FILLING}
        self._ends = self._find_ends()

    def numbers(self, key: str, default: list[Any]) -> list[Any]:
        """One number per token."""
        found = self.file.metadata.get(f"tokenizer.ggml.{key}")
        values: list[Any] = default if found is None else getattr(found, "tolist", list)()
        if len(values) != len(self.tokens):
            raise self.file.error(
                f"has {len(values)} of '{key}' for {len(self.tokens)} tokens", TOKENIZER
            )
        return values

    def token(self, part: str) -> int | None:
        """The id of the token with this part; one beyond the vocabulary counts as left out."""
        key = f"tokenizer.ggml.{part}_token_id"
        if key in self.file.metadata:
            index: int = self.file.get(key, int)
            if 0 <= index < len(self.tokens):
                return index
        index = DEFAULTS.get(self.model, {}).get(part, -1)
        return index if 0 <= index < len(self.tokens) else None

    def ends(self) -> list[int]:
        """The ids of all tokens that end an answer."""
        return sorted(self._ends)

    def _filling_token(self, part: str) -> int | None:
        index = self.token(part)
        if index is None and part in OLD_NAMES:
            index = self.token(OLD_NAMES[part])
        if index is None:
            index = next((self.ids[text] for text in FILLING[part] if text in self.ids), None)
            self._control(index)
        return index

    def _control(self, index: int | None) -> None:
        """Types such a token anew: some converters declare it a normal one."""
        if index is not None:
            self.types[index] = CONTROL

    def _find_ends(self) -> set[int]:
        by_text = {self.ids[text] for text in ENDS if text in self.ids}
        for index in by_text:
            # Vocabularies learnt from web pages have the tag, which is text where it is not typed.
            if self.tokens[index] != "</s>":
                self._control(index)
        by_part = {self._filling[part] for part in FILLING_ENDS}
        by_part |= {self.token(part) for part in ("eos", "eot", "eom")}
        found = by_text | {index for index in by_part if index is not None}
        texts = {self.tokens[index] for index in found}
        # Where messages end with "<|end|>" and answers with these, more messages may follow it.
        calls = not texts.isdisjoint({"<|call|>", "<|calls|>"})
        if calls and ({"<|return|>", "<|flush|>"} & texts) and "<|end|>" in texts:
            found.discard(self.ids["<|end|>"])
        # Where answers end with these, "</s>" is the tag again.
        if not texts.isdisjoint({"<|tool_response>", "<|plamo:eos|>"}) and "</s>" in texts:
            found.discard(self.ids["</s>"])
        return found


def ends(file: GgufFile) -> list[int]:
    """The tokens that end an answer; none where the file's vocabulary cannot be used."""
    try:
        return Vocabulary(file).ends()
    except ConfigError:
        return []
