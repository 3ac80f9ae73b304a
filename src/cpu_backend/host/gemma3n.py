"""Gemma 3n of text alone looks its embeddings per layer up.

What: ``Gemma3nForCausalLM.forward`` does so where its caller has not.
Why: the host does it in its multimodal class alone; without them each layer gets the projection of
    the first embedding instead.
Since: 0.32
Until: the text model embeds per layer.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch


@patch(
    "vllm.model_executor.models.gemma3n",
    "Gemma3nForCausalLM.forward(self, input_ids, positions, *, per_layer_inputs, ...)",
)
def embed_per_layer(original: Any) -> Any:
    """From the tokens."""

    def forward(
        self: Any, input_ids: Any, positions: Any, *, per_layer_inputs: Any = None, **rest: Any
    ) -> Any:
        if per_layer_inputs is None and input_ids is not None:
            shape = (-1, self.config.num_hidden_layers, self.config.hidden_size_per_layer_input)
            per_layer_inputs = self.model.get_per_layer_input_embeddings(input_ids).view(shape)
        return original(self, input_ids, positions, per_layer_inputs=per_layer_inputs, **rest)

    return forward
