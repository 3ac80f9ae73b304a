"""What the host's own code of some models leaves out, or leaves behind."""

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


def normalize_pixels(module: Any) -> None:
    """vllm.model_executor.models.exaone4_5: the images' encoder takes the mean off their pixels.

    The host leaves that to the model, whose class says that it does so, as the one it is derived
    from; but its encoder is made without.
    """
    from vllm.model_executor.layers.fusion.mm_input_norm import build_mm_input_norm

    cls = module.Exaone4_5_ForConditionalGeneration
    original = cls.__init__

    @functools.wraps(original)
    def init(self: Any, *, vllm_config: Any, prefix: str = "") -> None:
        original(self, vllm_config=vllm_config, prefix=prefix)
        self.visual.input_norm = build_mm_input_norm(vllm_config.model_config)

    cls.__init__ = init


def forget_chosen_experts(module: Any) -> None:
    """vllm.model_executor.models.transformers.moe: experts that have run leave no tensor behind.

    The host keeps what the router has chosen for them until the next step.  Such a tensor is of the
    step's own memory, so the step would not be recorded.
    """
    cls = module.TransformersMoERunner
    original = cls._forward_super

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        try:
            result: torch.Tensor = original(self, *args, **kwargs)
        finally:
            self._moe_state.topk_ids = None
        return result

    cls._forward_super = forward
