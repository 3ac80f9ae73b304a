"""Eagle 2.5 reads images as its published code does.

What: images are cut into tiles that have three fifths of their pixels or more, in colours between
    -1 and 1, and begin with their number; a prompt may say <image-1> for the first of them, as the
    chat template does.
Why: the host has InternVL's tiles and colours, which are ImageNet's, names no image, and knows
    <image> alone.  Published code (image_processing_eagle2_5_vl_fast.py and
    processing_eagle2_5_vl.py of nvidia/Eagle2.5-8B) does the other.
Since: 0.30
Until: it does so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cpu_backend.host.seam import change, patch, rely_on

MODEL = "vllm.model_executor.models.eagle2_5_vl"


@patch(MODEL, "Eagle2_5_VLProcessingInfo.get_image_processor(self, ...)")
def as_siglip(original: Any) -> Any:
    """Llama Nemotron's, which has the same tiles and colours."""

    def get_image_processor(self: Any, **kwargs: Any) -> Any:
        from vllm.transformers_utils.processors.nemotron_vl import (
            LlamaNemotronVLEmbedImageProcessor,
        )

        theirs = original(self, **kwargs)
        return LlamaNemotronVLEmbedImageProcessor(
            theirs.image_size,
            theirs.min_dynamic_patch,
            theirs.max_dynamic_patch,
            theirs.dynamic_image_size,
            theirs.use_thumbnail,
        )

    return get_image_processor


@patch(MODEL, "Eagle2_5_VLProcessingInfo.get_hf_processor(self, ...)")
def count_tiles(original: Any) -> Any:
    """The same for the number of an image's tokens."""

    def get_hf_processor(self: Any, **kwargs: Any) -> Any:
        from vllm.transformers_utils.processors.nemotron_vl import LlamaNemotronVLEmbedProcessor

        theirs = original(self, **kwargs)
        return LlamaNemotronVLEmbedProcessor(
            theirs.image_processor, theirs.tokenizer, image_seq_length=theirs.image_seq_length
        )

    return get_hf_processor


rely_on(
    "vllm.multimodal.processing.processor",
    "BaseMultiModalProcessor._apply_prompt_updates(self, token_ids, mm_prompt_updates)",
)


@change(MODEL, "Eagle2_5_VLMultiModalProcessor")
def number(module: Any) -> None:
    """What stands for an image, by either name, becomes its number and its tokens.  Not before they
    are put into the prompt: what the host keeps of an image may serve another prompt."""
    processor = module.Eagle2_5_VLMultiModalProcessor
    original = processor._apply_prompt_updates

    def apply(self: Any, token_ids: list[int], mm_prompt_updates: Any) -> Any:
        def encode(text: str) -> list[int]:
            return self.info.get_tokenizer().encode(text, add_special_tokens=False)

        def numbered(update: Any, number: int) -> list[Any]:
            tokens = [*encode(f"<image {number}>"), *update.content.full]
            made = replace(update, content=replace(update.content, full=tokens))
            return [made, replace(made, target=encode(f"<image-{number}>"))]

        by_number = {
            kind: [numbered(update, number) for number, [update] in enumerate(items, 1)]
            for kind, items in mm_prompt_updates.items()
        }
        return original(self, token_ids, by_number)

    processor._apply_prompt_updates = apply
