"""A layer is packed when its last weight has been read, and its parameters are freed then.

What: loaders of linear layers and experts note what they have loaded (layers/arrivals.py), from
    when the loader of checkpoints begins; the host's pass over all layers leaves out those that are
    packed by then.
Why: after the whole checkpoint, all of its parameters take memory at once, those of a model that is
    quantized while it is loaded too.
Since: 0.32
Until: it processes a layer's weights as they come, of those that are not quantized as well.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, change, patch, replace
from cpu_backend.host.whole_weights import LINEAR, LOADER


@change("vllm.model_executor.layers.linear", *LINEAR, when=When.COMPUTING)
def note_linear(module: Any) -> None:
    """For the layers that the host will make."""
    from cpu_backend.layers import arrivals

    for symbol in LINEAR:
        replace(module, symbol.partition("(")[0], arrivals.into_linear)


@patch(
    "vllm.model_executor.layers.fused_moe.routed_experts",
    "RoutedExperts.weight_loader(self, param, loaded_weight, weight_name, shard_id, ...)",
    when=When.COMPUTING,
)
def note_experts(original: Any) -> Any:
    """The same."""
    from cpu_backend.layers import arrivals

    return arrivals.into_experts(original)


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
