"""bitsandbytes checkpoints, which the host has dropped.

What: the loader of checkpoints turns their tensors into what layers have.
Why: a module's scales are in up to five tensors of names that no layer has.
Since: 0.30
Until: the host reads them.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch


# Declared before those of whole_weights.py, which watch what comes out of here: not imported.
@patch(
    "vllm.model_executor.model_loader.default_loader",
    "DefaultModelLoader.get_all_weights(self, model_config, model)",
    when=When.COMPUTING,
)
def convert(original: Any) -> Any:
    """Of a model that says that it is quantized so."""

    def get_all_weights(self: Any, model_config: Any, model: Any) -> Any:
        from cpu_backend.host.bases import get_tensor_model_parallel_world_size
        from cpu_backend.layers.quantization import bitsandbytes

        weights = original(self, model_config, model)
        if model_config.quantization != bitsandbytes.METHOD:
            return weights
        ranks = get_tensor_model_parallel_world_size()
        return bitsandbytes.converted(iter(weights), ranks, bitsandbytes.kept(model))

    return get_all_weights
