"""A constraint on the output must compile, and allow an answer that ends.

What: ``_validate_structured_outputs`` raises the host's error for requests, with a sentence.
Why: the host answers some such requests with status 500, and others never.
Since: 0.32
Until: it answers 400.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch
from cpu_backend.serving.requests import unanswerable


@patch("vllm.sampling_params", "SamplingParams._validate_structured_outputs(self, ...)")
def validate(original: Any) -> Any:
    """Also what compiles."""
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.structured_output.utils import grammar_is_likely_lark

    def validate_structured_outputs(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except VLLMValidationError:
            raise
        except Exception as error:
            raise VLLMValidationError(
                f"The constraint on the output cannot be used: {' '.join(str(error).split())}"
            ) from error
        constraint = self.structured_outputs
        if constraint is not None and (said := unanswerable(constraint, grammar_is_likely_lark)):
            raise VLLMValidationError(said)

    return validate_structured_outputs
