"""Adapters of Llama 4's queries and keys have their channels where the model has them.

What: the second matrix of such an adapter is turned as the weights of a checkpoint are.
Why: the host puts the channels that turn together, which checkpoints have side by side, half a head
    apart, but not those of adapters: what they add goes to other channels.
Since: 0.30
Until: the host turns both.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.lora.worker_manager",
    "WorkerLoRAManager._load_adapter(self, lora_request)",
    when=When.COMPUTING,
)
def turn_channels(original: Any) -> Any:
    """Of the models that have a function for it."""

    def _load_adapter(self: Any, lora_request: Any) -> Any:
        adapter = original(self, lora_request)
        for prefix, model in self._adapter_manager.model.named_modules():
            turn = getattr(model, "permute_qk_weight_for_rotary", None)
            if turn is not None:
                for name, weights in adapter.loras.items():
                    if name.startswith(prefix):
                        _, weights.lora_b = turn(f"{name}.weight", weights.lora_b)
        return adapter

    return _load_adapter
