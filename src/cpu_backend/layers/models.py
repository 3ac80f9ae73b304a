"""What the host's own code of a model leaves out."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def embed_per_layer(module: Any) -> None:
    """vllm.model_executor.models.gemma3n: the text-only model looks its embeddings per layer up.

    The host does so in its multimodal class alone; without them each layer gets the projection of
    the first embedding instead.
    """
    cls = module.Gemma3nForCausalLM
    original = cls.forward

    @functools.wraps(original)
    def forward(
        self: Any,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        *,
        per_layer_inputs: torch.Tensor | None = None,
        **rest: Any,
    ) -> Any:
        if per_layer_inputs is None and input_ids is not None:
            shape = (-1, self.config.num_hidden_layers, self.config.hidden_size_per_layer_input)
            per_layer_inputs = self.model.get_per_layer_input_embeddings(input_ids).view(shape)
        return original(self, input_ids, positions, per_layer_inputs=per_layer_inputs, **rest)

    cls.forward = forward
