"""Ovis is told the marks of an image's begin, rows and end in the order of the published code.

What: ``OvisMultiModalProcessor.image_indicators_to_visual_tokens`` numbers them from the first of
    the last five visual tokens on; ``_postprocess_hf_mm_data`` keeps each image's by itself.
Why: the host numbers them from the last one back, so an image begins with the mark of its end and
    has the wrong marks between its tiles: other answers than the authors' code gives.  And it makes
    one tensor of all images' marks, which fails where they differ in number.
Since: 0.32
Until: the host counts forwards, and takes images of several sizes in a request.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch


@patch(
    "vllm.model_executor.models.ovis",
    "OvisMultiModalProcessor.image_indicators_to_visual_tokens(self, image_indicators)",
)
def count_forwards(original: Any) -> Any:
    """In place of the original, of which nothing is left."""
    del original

    def number(self: Any, image_indicators: list[int]) -> list[int]:
        from vllm.model_executor.models.ovis import IMAGE_INDICATOR_IDS

        first = self.info.get_hf_config().visual_tokenizer_config.vocab_size
        first -= len(IMAGE_INDICATOR_IDS)
        return [
            first + IMAGE_INDICATOR_IDS.index(mark)
            for mark in image_indicators
            if mark in IMAGE_INDICATOR_IDS
        ]

    return number


@patch(
    "vllm.model_executor.models.ovis",
    "OvisMultiModalProcessor._postprocess_hf_mm_data(self, mm_data, hf_processor_mm_kwargs, "
    "processed_data)",
)
def keep_apart(original: Any) -> Any:
    """In place of the original too."""
    del original

    def postprocess(
        self: Any, mm_data: Any, hf_processor_mm_kwargs: Any, processed_data: Any
    ) -> Any:
        import torch

        if mm_data:
            marks = self.info.get_hf_processor().construct_image_indicators
            processed_data["indicator_tokens"] = [
                torch.tensor(self.image_indicators_to_visual_tokens(marks(grid)))
                for grid in processed_data["grids"]
            ]
        return processed_data

    return postprocess
