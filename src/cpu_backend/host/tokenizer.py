"""A tokenizer that cannot be loaded, or a mode that no tokenizer has, in one sentence.

What: ``CachedHfTokenizer.from_pretrained`` and ``load_tokenizer_cls`` raise a sentence.
Why: it fails with whatever its library raises.
Since: 0.32
Until: never: manners, not a defect.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.errors import ConfigError
from cpu_backend.host.seam import patch
from cpu_backend.serving import sentences


@patch("vllm.tokenizers.hf", "CachedHfTokenizer.from_pretrained(cls, path_or_repo_id, ...)")
def from_pretrained(original: Any) -> Any:
    """In a sentence."""

    def load(cls: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        before = f"The tokenizer of '{path}' cannot be loaded ("
        after = "): download it again, or name another by --tokenizer."
        with sentences.told(Exception, around=(before, after)):
            return original(cls, path, *args, **kwargs)

    return load


@patch("vllm.tokenizers.registry", "_TokenizerRegistry.load_tokenizer_cls(self, tokenizer_mode)")
def load_tokenizer_cls(original: Any) -> Any:
    """With the modes that there are."""

    def load(self: Any, tokenizer_mode: str) -> Any:
        if tokenizer_mode not in self.tokenizers:
            modes = ", ".join(sorted(self.tokenizers))
            raise ConfigError(
                f"--tokenizer-mode {tokenizer_mode} is not known: leave it out, or choose one of "
                f"{modes}."
            )
        return original(self, tokenizer_mode)

    return load
