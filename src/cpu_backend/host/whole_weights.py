"""A weight of the checkpoint is loaded whole and as what it is, or not at all.

What: loaders of linear layers, embeddings and experts (layers/loaders.py) compare shapes and dtypes
    first (layers/whole_weights.py), and the loader of checkpoints looks whether every layer has
    been given its weights and has taken its bias.
Why: the host's linear layers take of a larger weight what fits, and its experts fill what a smaller
    one does: with another model's config.json the engine starts, and answers nonsense, as it does
    where quantization_config does not name a layer that is not quantized.  An embedding fails an
    assertion without words.  Of what no checkpoint has given, the host looks for norms and tables
    alone, and in quantized models for nothing unless it is asked to.  Of what the checkpoint has,
    biases without a parameter are passed over, and parameters without one hold anything.
Since: 0.32
Until: it compares.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, change, patch, replace

LINEAR = (
    "ColumnParallelLinear.weight_loader(self, param, loaded_weight)",
    "ColumnParallelLinear.weight_loader_v2(self, param, loaded_weight)",
    "MergedColumnParallelLinear.weight_loader(self, param, loaded_weight, loaded_shard_id)",
    "MergedColumnParallelLinear.weight_loader_v2(self, param, loaded_weight, loaded_shard_id)",
    "QKVParallelLinear.weight_loader(self, param, loaded_weight, loaded_shard_id)",
    "QKVParallelLinear.weight_loader_v2(self, param, loaded_weight, loaded_shard_id)",
    "RowParallelLinear.weight_loader(self, param, loaded_weight)",
    "RowParallelLinear.weight_loader_v2(self, param, loaded_weight)",
)


@change("vllm.model_executor.layers.linear", *LINEAR, when=When.COMPUTING)
def into_linear(module: Any) -> None:
    """For the layers that the host will make."""
    from cpu_backend.layers import loaders

    for symbol in LINEAR:
        replace(module, symbol.partition("(")[0], loaders.linear)


@patch(
    "vllm.model_executor.layers.vocab_parallel_embedding",
    "VocabParallelEmbedding.weight_loader(self, param, loaded_weight)",
    when=When.COMPUTING,
)
def into_embedding(original: Any) -> Any:
    """The same."""
    from cpu_backend.layers import loaders

    return loaders.embedding(original)


@patch(
    "vllm.model_executor.layers.fused_moe.routed_experts",
    "RoutedExperts.weight_loader(self, param, loaded_weight, weight_name, shard_id, ...)",
    when=When.COMPUTING,
)
def into_experts(original: Any) -> Any:
    """The same."""
    from cpu_backend.layers import loaders

    return loaders.experts(original)


LOADER = "vllm.model_executor.model_loader.default_loader"
OURS = "layers"  # the host's setting, which nobody has given


@patch("vllm.model_executor.model_loader.base_loader", "initialize_model", when=When.COMPUTING)
def before_weights(original: Any) -> Any:
    """Biases add nothing until they are loaded, every model in it has a config that the host
    computes right, and its tables of positions are long enough."""
    from cpu_backend import only_with, positions
    from cpu_backend.layers import whole_weights

    def initialize_model(vllm_config: Any, **kwargs: Any) -> Any:
        model = original(vllm_config=vllm_config, **kwargs)
        only_with.check_parts(model, vllm_config.model_config.runner_type)
        own = kwargs.get("model_config") or vllm_config.model_config
        positions.check(model, own.max_model_len)
        whole_weights.without_biases(model)
        return model

    return initialize_model


@patch(LOADER, "DefaultModelLoader.load_weights(self, model, model_config)", when=When.COMPUTING)
def look(original: Any) -> Any:
    """Unless ``enable_weights_track`` of --model-loader-extra-config says something else."""
    from cpu_backend.layers.whole_weights import Biases

    def load_weights(self: Any, model: Any, model_config: Any) -> None:
        if self.enable_weights_track is None:
            self.enable_weights_track = OURS
        self.model_config, self.biases = model_config, Biases()
        original(self, model, model_config)
        self.biases.check(model)

    return load_weights


@patch(LOADER, "DefaultModelLoader.get_all_weights(self, model_config, model)", when=When.COMPUTING)
def watch(original: Any) -> Any:
    """Which of them a model takes."""

    def get_all_weights(self: Any, *args: Any, **kwargs: Any) -> Any:
        weights = original(self, *args, **kwargs)
        return self.biases.watch(weights) if hasattr(self, "biases") else weights

    return get_all_weights


@patch(
    LOADER,
    "DefaultModelLoader.track_weights_loading(self, model, loaded_weights, ...)",
    when=When.COMPUTING,
)
def check_loaded(original: Any) -> Any:
    """After the host's own look; some models do not say what they have loaded."""
    from cpu_backend.layers import arrivals, whole_weights

    def track(self: Any, model: Any, loaded_weights: Any, **options: bool) -> None:
        if loaded_weights is not None:
            loaded_weights = set(loaded_weights) | arrivals.stand_ins(model)
        if self.enable_weights_track != OURS:
            original(self, model, loaded_weights, **options)
        elif loaded_weights is not None:
            original(self, model, set(loaded_weights))
            whole_weights.check_loaded(model, loaded_weights, self.model_config)

    return track
