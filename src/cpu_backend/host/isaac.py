"""Isaac runs in 16 bits, and places an image's tokens by lines and columns in any case.

What: positions of patches are interpolated in fp32; a config without sections of channels gets
    those that its published code takes then, which passes over the word for interleaved ones.
Why: torch has no such interpolation in 16 bits on a CPU, so that the first image ends the engine;
    and where a config names no sections the host places all tokens as if they were text.
Since: 0.30
Until: it does neither.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.models.isaac",
    "Siglip2VariableSequenceEmbeddings.positional_embeddings(self, packed_seq_patches)",
    when=When.COMPUTING,
)
def in_fp32(original: Any) -> Any:
    """Of all images' patches [patches, size], in the dtype of the weights."""

    def positions(self: Any, packed_seq_patches: Any) -> Any:
        weight = self.position_embedding.weight
        wide = SimpleNamespace(
            position_embedding=SimpleNamespace(weight=weight.float()),
            position_embedding_size=self.position_embedding_size,
            embed_dim=self.embed_dim,
        )
        return original(wide, packed_seq_patches).to(weight.dtype)

    return positions


@patch(
    "vllm.transformers_utils.configs.isaac",
    "IsaacConfig.__init__(self, text_config, vision_config, ...)",
)
def say_sections(original: Any) -> Any:
    """Where the host looks for them, before it makes the model."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        for config in (self, self.text_config):
            rope = config.rope_parameters
            half = config.head_dim // 2
            rope["mrope_section"] = rope.get("mrope_section") or [half // 2, half // 4, half // 4]
            rope.pop("mrope_interleaved", None)

    return __init__
