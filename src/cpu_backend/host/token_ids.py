"""A token that the model does not know ends its request, not the engine.

What: ``_validate_model_input`` raises the host's error for tokens beyond the model's vocabulary
    where no picture or sound stands.
Why: the host lets pass what the tokenizer alone knows, and everything where there is no tokenizer.
    Gemma 3 1B has such a token for images: its text in a prompt would end the engine.
Since: 0.30
Until: the host compares with the model's vocabulary alone.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch, rely_on

rely_on("vllm.config.model", "ModelConfig.get_vocab_size(self)")


@patch(
    "vllm.v1.engine.input_processor",
    "InputProcessor._validate_model_input(self, prompt_input, prompt_type)",
)
def validate(original: Any) -> Any:
    """Also what the tokenizer knows."""

    def validate_model_input(self: Any, prompt_input: Any, prompt_type: Any) -> None:
        original(self, prompt_input, prompt_type)
        ids = [] if prompt_input["type"] == "embeds" else prompt_input["prompt_token_ids"]
        if said := unknown_token(ids, prompt_input, self.model_config.get_vocab_size()):
            from vllm.exceptions import VLLMValidationError

            raise VLLMValidationError(said, parameter="prompt")

    return validate_model_input


def unknown_token(ids: Any, prompt_input: Any, vocab_size: int) -> str:
    """What is wrong with the tokens of a prompt; empty if nothing."""
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return ""
    media: set[int] = set()
    for places in (prompt_input.get("mm_placeholders") or {}).values():
        for place in places:
            media.update(range(place.offset, place.offset + place.length))
    for at, token in enumerate(ids):
        if not 0 <= token < vocab_size and at not in media:
            return (
                f"The prompt has the token {token}, which is not in the model's vocabulary of "
                f"{vocab_size} tokens."
            )
    return ""
