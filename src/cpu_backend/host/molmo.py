"""Molmo and Molmo 2 add what they see of an image to the embeddings of its tokens.

What: what the encoder makes of a patch is added to the embedding of the token that stands for it.
Why: the host puts it in that one's place.  Published code adds it (github.com/allenai/molmo2,
    issue 17), and the embedding of that token was trained.
Since: 0.30
Until: it adds it.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.models.molmo",
    "MolmoForCausalLM._process_image_input(self, image_input)",
    when=When.COMPUTING,
)
def add(original: Any) -> Any:
    """Of each image, its patches alone [tokens, hidden]."""

    def process(self: Any, image_input: Any) -> Any:
        return [seen + _patch(self, seen) for seen in original(self, image_input)]

    return process


@patch(
    "vllm.model_executor.models.molmo2",
    "Molmo2ForConditionalGeneration._process_image_input(self, image_input)",
    when=When.COMPUTING,
)
def add_images(original: Any) -> Any:
    def process(self: Any, image_input: Any) -> Any:
        return _added(self, original(self, image_input), image_input["image_tokens"])

    return process


@patch(
    "vllm.model_executor.models.molmo2",
    "Molmo2ForConditionalGeneration._process_video_input(self, video_input)",
    when=When.COMPUTING,
)
def add_videos(original: Any) -> Any:
    def process(self: Any, video_input: Any) -> Any:
        return _added(self, original(self, video_input), video_input["video_tokens"])

    return process


def _added(model: Any, media: Any, tokens: Any) -> tuple[Any, ...]:
    """``media``: of each one [tokens, hidden], those of its marks, which it has already, among
    them; tokens: of all of them."""
    own = tokens.split([len(seen) for seen in media])
    return tuple(
        seen + (of == model.img_patch_id)[:, None] * _patch(model, seen)
        for seen, of in zip(media, own, strict=True)
    )


def _patch(model: Any, like: Any) -> Any:
    """The embedding of a patch's token [1, hidden]."""
    import torch

    number = torch.tensor([model.img_patch_id], device=like.device)
    return model.get_language_model().embed_input_ids(number).to(like.dtype)
