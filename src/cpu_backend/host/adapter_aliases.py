"""A layer that two modules hold has its adapters in both.

What: after the host has put its layers with adapters in the places of those without, they take
    every other place of theirs, too.
Why: a mixture's runner holds the router besides the model's block and runs it, and the host looks
    for it in the layer that it has put around the runner: adapters of routers do nothing.
Since: 0.30
Until: the host looks in the runner.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.lora.model_manager",
    "LoRAModelManager._create_lora_modules(self)",
    when=When.COMPUTING,
)
def everywhere(original: Any) -> Any:
    """Wherever the layer without adapters is left, but within the one that has them."""

    def _create_lora_modules(self: Any) -> None:
        original(self)
        having = {id(layer.base_layer): layer for layer in self.modules.values()}
        for parent in list(self.model.modules()):
            for name, child in list(parent.named_children()):
                layer = having.get(id(child))
                if layer is not None and layer is not parent:
                    setattr(parent, name, layer)

    return _create_lora_modules
