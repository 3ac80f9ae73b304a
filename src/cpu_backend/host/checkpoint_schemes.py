"""``--quantization`` with a scheme of checkpoints, for a checkpoint that has none.

What: the reader of a checkpoint's scheme looks first whether there is one.
Why: the host makes the scheme without the settings that it needs, which ends in a traceback, or
    reads weights as if they had scales.
Since: 0.32
Until: the host refuses it.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.model_loader.weight_utils",
    "get_quant_config(model_config, load_config)",
    when=When.STARTING,
)
def look_first(original: Any) -> Any:
    """ConfigError as quantization.check has it."""

    def get_quant_config(model_config: Any, load_config: Any) -> Any:
        from cpu_backend.layers import quantization

        quantization.check(model_config)
        return original(model_config, load_config)

    return get_quant_config
