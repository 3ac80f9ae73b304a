"""The tokenizer of a GGUF file as tokenizer.json, for transformers.

GGUF names the kind of vocabulary: "gpt2" is byte-level BPE with a list of merges, where
``tokenizer.ggml.pre`` names how text is split beforehand (splits.py); "gemma4" the same over
characters; "llama" SentencePiece with a score per piece, which becomes a BPE by listing every merge
that makes a piece, best score first; "t5" SentencePiece's other model, the likeliest pieces;
"bert" the longest pieces of words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cpu_backend.errors import ConfigError
from cpu_backend.gguf.reader import GgufFile
from cpu_backend.gguf.splits import BY_ARCHITECTURE, SPLITS, Split
from cpu_backend.gguf.vocabulary import (
    CONTROL,
    TOKENIZER,
    UNKNOWN,
    USER_DEFINED,
    Renamed,
    Vocabulary,
)

if TYPE_CHECKING:
    import tokenizers

SPACE = "▁"  # stands for one in vocabularies of characters

# Part in GGUF -> part in transformers.
ROLES = {"bos": "bos", "eos": "eos", "padding": "pad", "unknown": "unk"}
# By kind of vocabulary: what is put before and after a text where the file does not say.
ADDED = {
    "llama": {"bos": True, "eos": False},
    "t5": {"bos": False, "eos": True},
    "bert": {"bos": True, "seperator": True},
}
INPUTS = ["input_ids", "attention_mask"]
DOUBLING = ("roberta-bpe", "jina-v1-en", "jina-v2-code")  # splits of RoBERTa's kin


class GgufTokenizer:
    """Tokenizer and its settings; raises ConfigError where the file has none that is known."""

    def __init__(self, file: GgufFile, renamed: Renamed | None = None) -> None:
        self.file = file
        self.vocabulary = Vocabulary(file, renamed)
        self.tokens, self.model = self.vocabulary.tokens, self.vocabulary.model
        self.named = {
            f"{role}_token": self.tokens[index]
            for part, role in ROLES.items()
            if (index := self.vocabulary.token(part)) is not None
        }
        self.tokenizer = self._build()

    def ends(self) -> list[int]:
        """The ids of all tokens that end an answer."""
        return self.vocabulary.ends()

    def settings(self, context_length: int) -> dict[str, Any]:
        """What tokenizer_config.json says.

        Not what is put before and after a text: transformers would do it anew, and tokenizer.json
        says it already.
        """
        template = self.file.metadata.get("tokenizer.chat_template")
        return {
            # The generic class reads tokenizer.json as it is.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": context_length,
            # Only these models tell two texts apart by more than their tokens.
            **({} if self.model == "bert" else {"model_input_names": INPUTS}),
            **({"chat_template": template} if isinstance(template, str) else {}),
            **self.named,
        }

    def _flag(self, name: str, default: bool) -> bool:
        return bool(self.file.get(f"tokenizer.ggml.{name}", bool, default))

    def _split(self) -> Split:
        if self.model == "gemma4":
            return SPLITS["gemma4"]
        name = self.file.get("tokenizer.ggml.pre", str, "")
        if not name:
            architecture = self.file.get("general.architecture", str, "")
            name = BY_ARCHITECTURE.get(architecture, "missing")
        if name not in SPLITS:
            raise self.file.error(
                f"splits text in the way '{name}', which is not supported", TOKENIZER
            )
        return SPLITS[name]

    def _build(self) -> tokenizers.Tokenizer:
        builders = {
            **dict.fromkeys(("gpt2", "gemma4"), self._bpe),
            "llama": self._sentencepiece,
            "t5": self._unigram,
            "bert": self._word_pieces,
        }
        if self.model not in builders:
            raise self.file.error(
                f"has a tokenizer of the kind '{self.model}', which is not supported", TOKENIZER
            )
        try:
            tokenizer = builders[self.model]()
            self._add_tokens(tokenizer)
        except ConfigError:
            raise
        except Exception as error:  # the library raises nothing more particular
            raise self.file.error(
                f"has a tokenizer that cannot be built ({error})", TOKENIZER
            ) from error
        if tokenizer.get_vocab_size() != len(self.tokens):
            raise self.file.error("has a tokenizer that does not keep its vocabulary", TOKENIZER)
        self._surround(tokenizer)
        return tokenizer

    def _add_tokens(self, tokenizer: tokenizers.Tokenizer) -> None:
        """Tokens that are found in the text as it is, before anything else."""
        from tokenizers import AddedToken

        strips = self._strips()
        for special, kinds in ((True, (CONTROL, UNKNOWN)), (False, (USER_DEFINED,))):
            typed = zip(self.tokens, self.vocabulary.types, strict=True)
            tokenizer.add_tokens(
                [
                    AddedToken(text, special=special, normalized=False, rstrip=text in strips)
                    for text, kind in typed
                    if kind in kinds
                ]
            )

    def _strips(self) -> set[str]:
        """Tokens that swallow the spaces after them: GGUF does not say, Phi-3's do."""
        name = str(self.file.metadata.get("general.name", "")).lower()
        if "phi-3" not in name and "phi3" not in name:
            return set()
        return set(self.tokens) - {"<unk>", "<s>", "<|endoftext|>"}

    def _surround(self, tokenizer: tokenizers.Tokenizer) -> None:
        """Puts the tokens before and after a text that the model was trained with."""
        from tokenizers import processors

        split = self._split() if self.model in ("gpt2", "gemma4") else None
        around = ADDED.get(self.model) or {
            "bos": split is not None and split.adds_bos,
            "eos": False,
        }
        if self.model != "bert":  # which needs both, whatever a file says
            around = {part: self._flag(f"add_{part}_token", on) for part, on in around.items()}
        if split is SPLITS["gemma4"]:  # whose early files deny it
            around["bos"] = True
        ids = {
            part: index
            for part, on in around.items()
            if on and (index := self.vocabulary.token(part)) is not None
        }
        if not ids:
            return
        # "$" and ":" have a meaning in templates, so the tokens go by other names.
        before = ["bos"] if "bos" in ids else []
        after = [part for part in ids if part != "bos"]
        between, second = after, ["$B", *after] if after else [*before, "$B"]
        if self.model == "bert":  # which tells the second text apart, and what is behind it
            second = [f"{part}:1" for part in second]
        elif before and after and self._flag("add_sep_token", self._doubles()):
            ids["seperator"] = self.vocabulary.token("seperator") or ids["eos"]
            between = [*after, "seperator"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join((*before, "$A", *after)),
            pair=" ".join((*before, "$A", *between, *second)),
            special_tokens=[
                {"id": part, "ids": [index], "tokens": [self.tokens[index]]}
                for part, index in ids.items()
            ],
        )

    def _doubles(self) -> bool:
        """Whether one more token lies between two texts where the file does not say: as RoBERTa has
        it, and XLM-RoBERTa, whose vocabulary is of T5's kind."""
        pre = self.file.metadata.get("tokenizer.ggml.pre")
        return self.model == "t5" or pre in DOUBLING

    def _bpe(self) -> tokenizers.Tokenizer:
        from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

        split = self._split()
        tokenizer = Tokenizer(
            models.BPE(
                vocab=self.vocabulary.ids,
                merges=self._merges(),
                ignore_merges=split.whole,
                byte_fallback=split.raw,
                fuse_unk=split.raw,
            )
        )
        steps: list[Any] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in split.patterns
        ]
        if split.raw:
            tokenizer.normalizer = normalizers.Replace(" ", SPACE)
            tokenizer.decoder = decoders.Sequence(_undo())
        else:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
            tokenizer.decoder = decoders.Sequence([*self._as_bytes(), decoders.ByteLevel()])
        if split.composes:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        return tokenizer

    def _as_bytes(self) -> list[Any]:
        """Decoders for whole tokens of plain text that look like stand-ins for bytes.

        DeepSeek's early vocabularies have some letters twice over, "ö" among them.
        """
        from tokenizers import Regex, decoders, pre_tokenizers

        stand_ins = set(pre_tokenizers.ByteLevel.alphabet())
        convert = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return [
            decoders.Replace(Regex(rf"\A{re.escape(text)}\z"), convert.pre_tokenize_str(text)[0][0])
            for text, kind in zip(self.tokens, self.vocabulary.types, strict=True)
            if kind == USER_DEFINED and not text.isascii() and stand_ins.issuperset(text)
        ]

    def _merges(self) -> list[tuple[str, str]]:
        merges = []
        for merge in self.file.get("tokenizer.ggml.merges", list):
            left, _, right = merge.partition(" ")
            if not left or not right:
                raise self.file.error("has a merge that is not of two tokens", TOKENIZER)
            merges.append((left, right))
        return merges

    def _sentencepiece(self) -> tokenizers.Tokenizer:
        from tokenizers import Tokenizer, decoders, models, normalizers

        scores = self.vocabulary.numbers("scores", [0.0] * len(self.tokens))
        tokenizer = Tokenizer(
            models.BPE(
                vocab=self.vocabulary.ids,
                merges=_merges(self.vocabulary.ids, scores),
                unk_token=self.named.get("unk_token"),
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        steps: list[Any] = [normalizers.Replace(" ", SPACE)]
        undo = _undo()
        if self._flag("add_space_prefix", True):
            steps.insert(0, normalizers.Prepend(SPACE))
            undo.append(decoders.Strip(" ", 1, 0))
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.decoder = decoders.Sequence(undo)
        return tokenizer

    def _unigram(self) -> tokenizers.Tokenizer:
        from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

        scores = self.vocabulary.numbers("scores", [0.0] * len(self.tokens))
        scored = list(zip(self.tokens, map(float, scores), strict=True))
        tokenizer = Tokenizer(models.Unigram(scored, self.vocabulary.token("unknown")))
        steps: list[Any] = []
        table = self.file.metadata.get("tokenizer.ggml.precompiled_charsmap")
        if table is not None:
            steps.append(normalizers.Precompiled(bytes(value & 255 for value in table.tolist())))
        prefixed = self._flag("add_space_prefix", False)
        scheme = "always" if prefixed else "never"
        words: list[Any] = []
        if self._flag("remove_extra_whitespaces", False):
            words, scheme = [pre_tokenizers.Split(Regex(" +"), behavior="removed")], "always"
        if steps:
            tokenizer.normalizer = normalizers.Sequence(steps)
        words.append(pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
        tokenizer.decoder = decoders.Metaspace(SPACE, prepend_scheme=scheme)
        return tokenizer

    def _word_pieces(self) -> tokenizers.Tokenizer:
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

        lower = self._flag("normalizer.lowercase", True)
        accents = self._flag("normalizer.strip_accents", lower)
        unknown = self.named.get("unk_token", "[UNK]")
        # GGUF marks the first pieces of words, the library the others.
        typed = zip(self.tokens, self.vocabulary.types, strict=True)
        self.tokens = [_word_piece(text, kind) for text, kind in typed]
        vocabulary = {text: index for index, text in enumerate(self.tokens)}
        tokenizer = Tokenizer(
            models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100)
        )
        tokenizer.normalizer = normalizers.BertNormalizer(
            lowercase=lower, strip_accents=accents, handle_chinese_chars=True, clean_text=True
        )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
        return tokenizer


def _word_piece(text: str, kind: int) -> str:
    if kind in (CONTROL, UNKNOWN, USER_DEFINED):
        return text
    return text.removeprefix(SPACE) if text.startswith(SPACE) else f"##{text}"


def _undo() -> list[Any]:
    """Decoders of pieces of characters, and of bytes that are none."""
    from tokenizers import decoders

    return [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]


# Pieces of SentencePiece vocabularies are at most 16 characters long by default; runs of spaces
# and underlines in some are longer.
MAX_PIECE = 64


def _merges(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a third, in the order in which SentencePiece joins them."""
    found = []
    for piece, index in vocabulary.items():
        for cut in range(1, len(piece) if len(piece) <= MAX_PIECE else 0):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-scores[index], vocabulary[left], vocabulary[right], left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]
