"""``--quantization cpu_int8`` and ``cpu_int4`` reach layers that a model makes without a scheme.

What: ``initialize_model`` gives such layers the method of layers/quantization/at_load.py.
Why: some models do not pass the scheme on: all layers of Mamba, the output layer of gpt-oss and
    Falcon-H1 stayed in 16 bits, and nobody was told.
Since: 0.32
Until: every model passes it on.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch


@patch("vllm.model_executor.model_loader.base_loader", "initialize_model", when=When.COMPUTING)
def reach_all_layers(original: Any) -> Any:
    """Once all layers are there, and before their weights are read."""

    def initialize_model(*, vllm_config: Any, **options: Any) -> Any:
        from cpu_backend.layers.quantization import at_load

        model = original(vllm_config=vllm_config, **options)
        if isinstance(vllm_config.quant_config, at_load.AtLoadConfig):
            at_load.reach_all_layers(model, vllm_config.quant_config)
        return model

    return initialize_model
