"""Gemma 4's embeddings per layer reach every stage of a pipeline.

What: ``Gemma4Model.forward`` of a later stage takes those that the stage before has sent.
Why: it takes them if its caller has given some, which are the first stage's alone, so the layers of
    the others went without.
Since: 0.30
Until: it looks into what was sent.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch


@patch(
    "vllm.model_executor.models.gemma4",
    "Gemma4Model.forward(self, input_ids, positions, intermediate_tensors, inputs_embeds, "
    "per_layer_inputs, ...)",
)
def take_sent(original: Any) -> Any:
    """Where something was sent."""

    def forward(
        self: Any,
        input_ids: Any,
        positions: Any,
        intermediate_tensors: Any = None,
        inputs_embeds: Any = None,
        per_layer_inputs: Any = None,
        **rest: Any,
    ) -> Any:
        if intermediate_tensors is not None:
            per_layer_inputs = intermediate_tensors.tensors.get("per_layer_inputs")
        return original(
            self,
            input_ids,
            positions,
            intermediate_tensors,
            inputs_embeds,
            per_layer_inputs,
            **rest,
        )

    return forward
