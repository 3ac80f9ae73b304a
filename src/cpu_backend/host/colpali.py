"""The projections of ColPali and ColQwen3 have the bias of the checkpoint.

What: the projection of token embeddings is made with a bias, of zeros until one is loaded.
Why: the host makes it without one where config.json says how wide embeddings are, as published
    ones do, and passes over what the checkpoint has for it.
Since: 0.32
Until: it has one.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.models.colqwen3",
    "ColQwen3Model.__init__(self, *, vllm_config, prefix)",
    when=When.COMPUTING,
)
@patch(
    "vllm.model_executor.models.colpali",
    "ColPaliModel.__init__(self, *, vllm_config, prefix)",
    when=When.COMPUTING,
)
def make_bias(original: Any) -> Any:
    """For ``load_weights`` to fill."""

    def __init__(self: Any, *, vllm_config: Any, prefix: str = "") -> None:  # noqa: N807
        original(self, vllm_config=vllm_config, prefix=prefix)
        linear = self.custom_text_proj
        if linear is not None and linear.bias is None:
            zeros = linear.weight.new_zeros(linear.out_features)
            linear.bias = torch.nn.Parameter(zeros, requires_grad=False)

    return __init__
