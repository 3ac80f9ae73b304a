"""Tensors of a checkpoint that layers have otherwise: those of bitsandbytes and torchao.

What: the loader of checkpoints hands out what layers have.
Why: the host has dropped bitsandbytes, whose scales of a module are in up to five tensors of names
    that no layer has; and neither has quantized layers for all that such checkpoints quantize.
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
        weights = original(self, model_config, model)
        if model_config.quantization not in ("bitsandbytes", "torchao"):
            return weights
        from cpu_backend.host.bases import get_tensor_model_parallel_world_size
        from cpu_backend.layers.quantization import bitsandbytes, listed, torchao

        kept = listed.kept(model)
        if model_config.quantization == bitsandbytes.METHOD:
            ranks = get_tensor_model_parallel_world_size()
            return bitsandbytes.converted(iter(weights), ranks, kept or ())
        return weights if kept is None else torchao.converted(iter(weights), kept)

    return get_all_weights
