"""A layer is packed when its last weight has been read, and its parameters are freed then.

What: loaders of linear layers and experts, which whole_weights.py has changed, note what they have
    loaded (layers/arrivals.py), from when the loader of checkpoints begins; the host's pass over
    all layers leaves out those that are packed by then.
Why: after the whole checkpoint, all of its parameters take memory at once, those of a model that is
    quantized while it is loaded too.
Since: 0.32
Until: it processes a layer's weights as they come, of those that are not quantized as well.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch
from cpu_backend.host.whole_weights import LOADER


@patch(LOADER, "DefaultModelLoader.load_weights(self, model, model_config)", when=When.COMPUTING)
def expect(original: Any) -> Any:
    """From here on."""
    from cpu_backend.layers import arrivals

    def load_weights(self: Any, model: Any, model_config: Any) -> None:
        arrivals.expect(model, model_config)
        original(self, model, model_config)

    return load_weights


@patch(
    "vllm.model_executor.model_loader.base_loader",
    "process_weights_after_loading",
    when=When.COMPUTING,
)
def pack_the_rest(original: Any) -> Any:
    """What has not been packed."""
    from cpu_backend.layers import arrivals

    def process(model: Any, model_config: Any, target_device: Any) -> None:
        with arrivals.packed_once(model):
            original(model, model_config, target_device)

    return process
