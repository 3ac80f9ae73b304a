"""Rerankers put a query and a document into the text that they were trained with.

What: ``CrossEncoderIOProcessor.get_score_prompt`` takes the ``score_template`` of config.json where
    it is given no chat template.
Why: the host joins query and document as they are unless each server or call names a template; a
    GGUF file brings its own.
Since: 0.30
Until: it reads such a template from a checkpoint.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch

MODULE = "vllm.entrypoints.pooling.scoring.io_processor"


@patch(
    MODULE,
    "CrossEncoderIOProcessor.get_score_prompt(self, data_1, data_2, encode_kwargs, chat_template, "
    "...)",
)
def of_checkpoint(original: Any) -> Any:
    """A template of the user's own comes first."""

    def get_score_prompt(
        self: Any,
        data_1: Any,
        data_2: Any,
        encode_kwargs: dict[str, Any],
        chat_template: str | None = None,
        **others: Any,
    ) -> Any:
        own = getattr(self.model_config.hf_config, "score_template", None)
        return original(self, data_1, data_2, encode_kwargs, chat_template or own, **others)

    return get_score_prompt
