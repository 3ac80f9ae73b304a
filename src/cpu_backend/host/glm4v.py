"""GLM-4V places all patches of an image at one position.

What: the config of a model with a vision encoder says that its positions are its own, which are
    counted as its published code counts them: what begins an image, its patches, and what ends it
    are at three positions, whatever their number is.
Why: the host gives each patch a position of its own, as if it were text, and so moves all text
    behind an image (github.com/vllm-project/vllm/issues/14790).  What the class has for positions
    is another model's, and is never asked.
Since: 0.30
Until: it counts so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cpu_backend.host.seam import When, patch

MODEL = "vllm.model_executor.models.glm4v"


@patch(
    "vllm.transformers_utils.configs.chatglm",
    "ChatGLMConfig.__init__(self, num_layers, padded_vocab_size, hidden_size, ...)",
)
def say_so(original: Any) -> Any:
    """In the words that the host looks for; its layers do not read them."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        if getattr(self, "vision_config", None):
            self.ignore_keys_at_rope_validation = {"mrope_section"}
            self.rope_parameters = {
                "rope_type": "default",
                "rope_theta": 10000.0 * getattr(self, "rope_ratio", 1.0),
                "mrope_section": [self.kv_channels // 4, 0, 0],
            }

    return __init__


@patch(
    MODEL,
    "GLM4VForCausalLM.get_mrope_input_positions(self, input_tokens, mm_features)",
    when=When.COMPUTING,
)
def count(_: Any) -> Any:
    """The host counts rows and columns of patches, which GLM-4.1V has."""

    def positions(
        self: Any, input_tokens: Sequence[int], mm_features: Sequence[Any]
    ) -> tuple[torch.Tensor, int]:
        """[3, tokens], and how far the next token's is from the number of tokens before it."""
        steps = torch.ones(len(input_tokens), dtype=torch.long)
        for feature in mm_features:
            begin, length = feature.mm_position.offset, feature.mm_position.length
            steps[begin + 2 : begin + length - 1] = 0
        places = steps.cumsum(0) - 1
        return places.expand(3, -1), int(places[-1]) + 1 - len(input_tokens)

    return positions


@patch(
    MODEL,
    "GLM4VForCausalLM.forward(self, input_ids, positions, ...)",
    when=When.COMPUTING,
)
def take_one(original: Any) -> Any:
    """Of the three that the host has of each position, which are the same."""

    def forward(self: Any, input_ids: Any, positions: torch.Tensor, *a: Any, **k: Any) -> Any:
        return original(self, input_ids, positions[0], *a, **k)

    return forward
