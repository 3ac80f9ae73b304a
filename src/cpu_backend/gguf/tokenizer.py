"""The tokenizer of a GGUF file as tokenizer.json, for transformers.

GGUF has two kinds of vocabulary for the supported models: "gpt2", byte-level BPE with a list of
merges, where ``tokenizer.ggml.pre`` names how text is split beforehand; and "llama", SentencePiece
with a score per piece, which becomes a BPE by listing every merge that makes a piece, best score
first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cpu_backend.errors import ConfigError
from cpu_backend.gguf.reader import GgufFile

if TYPE_CHECKING:
    import tokenizers

TOKENIZER = "pass the original model's with --tokenizer"

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # types of tokens

# Splits of text before BPE, as the original tokenizers publish them.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3, QWEN2 = _WORDS % "{1,3}", _WORDS % ""
GPT2, DIGITS = "gpt2", "digits"
SPLITS = {
    **dict.fromkeys(("gpt-2", "phi-2"), GPT2),
    **dict.fromkeys(("smollm",), DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), QWEN2),
}

# Role in GGUF -> role in transformers.
ROLES = {"bos": "bos", "eos": "eos", "padding": "pad", "unknown": "unk"}


class GgufTokenizer:
    """Tokenizer and its settings; raises ConfigError where the file has none that is known."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.tokens = file.get("tokenizer.ggml.tokens", list)
        if len(set(self.tokens)) != len(self.tokens):
            raise file.error("has a token twice in its vocabulary", TOKENIZER)
        self._types = self._numbers("token_type", [NORMAL] * len(self.tokens))
        self.model = file.get("tokenizer.ggml.model", str)
        self.named = {
            f"{role}_token": self.tokens[index]
            for key, role in ROLES.items()
            if (index := self._token(key)) is not None
        }
        self.tokenizer = self._build()

    def settings(self, context_length: int) -> dict[str, Any]:
        """What tokenizer_config.json says."""
        template = self.file.metadata.get("tokenizer.chat_template")
        return {
            # The generic class reads tokenizer.json as it is.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": self._adds_bos(),
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": context_length,
            **({"chat_template": template} if isinstance(template, str) else {}),
            **self.named,
        }

    def _numbers(self, key: str, default: list[Any]) -> list[Any]:
        """One number per token."""
        found = self.file.metadata.get(f"tokenizer.ggml.{key}")
        values = default if found is None else getattr(found, "tolist", list)()
        if len(values) != len(self.tokens):
            raise self.file.error(f"has {len(values)} of '{key}' for {len(self.tokens)} tokens")
        return values

    def _token(self, role: str) -> int | None:
        key = f"tokenizer.ggml.{role}_token_id"
        if key not in self.file.metadata:
            return None
        index: int = self.file.get(key, int)
        if not 0 <= index < len(self.tokens):
            raise self.file.error(f"has no token {index}, which is its {role} token")
        return index

    def _adds_bos(self) -> bool:
        default = self.model == "llama" or self._split_name() in ("llama-bpe", "llama3", "llama-v3")
        return bool(self.file.get("tokenizer.ggml.add_bos_token", bool, default))

    def _split_name(self) -> str:
        return str(self.file.get("tokenizer.ggml.pre", str, "missing"))

    def _build(self) -> tokenizers.Tokenizer:
        from tokenizers import AddedToken

        builders = {"gpt2": self._byte_level, "llama": self._sentencepiece}
        if self.model not in builders:
            raise self.file.error(
                f"has a tokenizer of the kind '{self.model}', which is not supported", TOKENIZER
            )
        try:
            tokenizer = builders[self.model]()
            for special, kinds in ((True, (CONTROL, UNKNOWN)), (False, (USER_DEFINED,))):
                typed = zip(self.tokens, self._types, strict=True)
                found = [text for text, kind in typed if text and kind in kinds]
                tokenizer.add_tokens(
                    [AddedToken(text, special=special, normalized=False) for text in found]
                )
        except ConfigError:
            raise
        except Exception as error:  # the library raises nothing more particular
            raise self.file.error(
                f"has a tokenizer that cannot be built ({error})", TOKENIZER
            ) from error
        if tokenizer.get_vocab_size() != len(self.tokens):
            raise self.file.error("has a tokenizer that does not keep its vocabulary", TOKENIZER)
        self._add_bos(tokenizer)
        return tokenizer

    def _add_bos(self, tokenizer: tokenizers.Tokenizer) -> None:
        from tokenizers import processors

        bos = self._token("bos")
        if self._adds_bos() and bos is not None:
            # "$" opens a variable in a template, so the token goes by another name.
            tokenizer.post_processor = processors.TemplateProcessing(
                single="BOS $A",
                pair="BOS $A BOS $B",
                special_tokens=[{"id": "BOS", "ids": [bos], "tokens": [self.tokens[bos]]}],
            )

    def _byte_level(self) -> tokenizers.Tokenizer:
        from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

        name = self._split_name()
        if name not in SPLITS:
            raise self.file.error(
                f"splits text in the way '{name}', which is not supported", TOKENIZER
            )
        split = SPLITS[name]
        merges = [tuple(merge.split(" ")) for merge in self.file.get("tokenizer.ggml.merges", list)]
        if any(len(merge) != 2 for merge in merges):
            raise self.file.error("has a merge that is not of two tokens", TOKENIZER)
        vocabulary = {text: index for index, text in enumerate(self.tokens)}
        tokenizer = Tokenizer(
            models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split == LLAMA3)
        )
        if split in (GPT2, DIGITS):
            byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
            first: Any = pre_tokenizers.Digits(individual_digits=True)
        else:
            byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            first = pre_tokenizers.Split(Regex(split), behavior="isolated")
        tokenizer.pre_tokenizer = (
            byte_level if split == GPT2 else pre_tokenizers.Sequence([first, byte_level])
        )
        if split == QWEN2:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _sentencepiece(self) -> tokenizers.Tokenizer:
        from tokenizers import Tokenizer, decoders, models, normalizers

        scores = self._numbers("scores", [0.0] * len(self.tokens))
        vocabulary = {text: index for index, text in enumerate(self.tokens)}
        unknown = self.named.get("unk_token")
        prefix = bool(self.file.get("tokenizer.ggml.add_space_prefix", bool, True))
        tokenizer = Tokenizer(
            models.BPE(
                vocab=vocabulary,
                merges=_merges(vocabulary, scores),
                unk_token=unknown,
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        steps: list[Any] = [normalizers.Replace(" ", "▁")]
        undo: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        if prefix:
            steps.insert(0, normalizers.Prepend("▁"))
            undo.append(decoders.Strip(" ", 1, 0))
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.decoder = decoders.Sequence(undo)
        return tokenizer


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
