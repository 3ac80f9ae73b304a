"""A tokenizer that cannot be loaded, in one sentence.

What: ``CachedHfTokenizer.from_pretrained`` raises a sentence.
Why: it fails with whatever its library raises.
Since: 0.32
Until: never: manners, not a defect.
"""

from __future__ import annotations

from typing import Any

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
