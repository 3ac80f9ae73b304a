"""A tokenizer made in code, of bytes: nothing has to be downloaded, and any text can be said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # ids 0 to 3, as build.BASE has them

ANSWERS = ("yes", "no")  # behind them where a reranker answers so


def byte_vocabulary(special: Sequence[str]) -> dict[str, int]:
    """Special tokens first, then the 256 bytes as byte-level tokenizers write them."""
    from tokenizers.pre_tokenizers import ByteLevel

    return {token: number for number, token in enumerate([*special, *sorted(ByteLevel.alphabet())])}


def write_tokenizer(folder: Path, extra: Sequence[str] = (), **options: Any) -> Any:
    """Leave the tokenizer in ``folder``, ``extra`` special tokens behind SPECIAL; also returned."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pad, begin, end, unknown = SPECIAL
    tokenizer = Tokenizer(models.BPE(vocab=byte_vocabulary([*SPECIAL, *extra]), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=begin,
        eos_token=end,
        unk_token=unknown,
        additional_special_tokens=list(extra),
        **options,
    )
    made.save_pretrained(folder)
    return made
