"""Linear layers and embeddings without quantization: packed once after loading."""

from __future__ import annotations

import torch

from cpu_backend import ops, providers
from cpu_backend.host.bases import (
    MergedColumnParallelLinear,
    ParallelLMHead,
    VocabParallelEmbedding,
    get_current_vllm_config_or_none,
)

SUPPORTED = (torch.float32, torch.bfloat16, torch.float16)


def pack_unquantized(layer: torch.nn.Module, remove_weight: bool) -> bool:
    """Give ``layer`` a packed weight and a ``cpu_linear(x, weight, bias)``, as the host's
    ``dispatch_cpu_unquantized_gemm`` does.

    weight [out_features, in_features]; with ``remove_weight`` the original is freed.  False for
    what stays with the host: weights of experts, which are no matrices.  Those of causal
    convolutions, [channels, 1, taps], are read as they are.
    """
    weight = layer.weight
    if weight.dim() == 3 and weight.size(1) == 1:
        return True
    if weight.is_meta or weight.dim() != 2 or weight.dtype not in SUPPORTED:
        return False
    if isinstance(layer, VocabParallelEmbedding):
        _pack_vocabulary(layer)
    else:
        layer.cpu_linear = providers.linear.make(
            str(weight.dtype), lambda provider: provider.linear(weight.detach(), parts_of(layer))
        )
        if remove_weight:
            _free_weight(layer)
    return True


def pack_plain(model: torch.nn.Module) -> None:
    """Have torch's own linear layers in ``model`` (classifiers, poolers, projections of images)
    multiply like the host's.

    PyTorch's product of a row depends on how many rows there are; this one does not.  The weights
    stay, for those who read them.
    """
    for module in model.modules():
        if type(module) is not torch.nn.Linear:
            continue
        weight = module.weight
        if not weight.is_meta and weight.dtype in SUPPORTED:
            module.__class__ = _PlainLinear
            module.cpu_linear = ops.PackedLinear(weight.detach())


class _PlainLinear(torch.nn.Linear):
    cpu_linear: ops.PackedLinear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cpu_linear(x, self.weight, self.bias)


def parts_of(layer: torch.nn.Module) -> int:
    """2 for two equal halves, packed side by side: activate_in_linear() may follow.  Else 1."""
    sizes = layer.output_partition_sizes if isinstance(layer, MergedColumnParallelLinear) else []
    return 2 if len(sizes) == 2 and sizes[0] == sizes[1] else 1


def _pack_vocabulary(layer: VocabParallelEmbedding) -> None:
    """An output layer is packed; an embedding table only if it is one too, of the same dtype.

    Tied layers, one module or two with one parameter, share one packed copy that also answers
    look-ups.  Logits stay in fp32: rounding them to 16 bits makes ties between likely tokens.
    """
    weight = layer.weight
    packed = getattr(weight, "packed", None)
    if packed is None:
        is_head = isinstance(layer, ParallelLMHead) or _embeddings_are_tied()
        if not is_head or getattr(layer, "cpu_only_table", False):
            return
        packed = weight.packed = ops.PackedLinear(weight.detach(), float_output=True)
    layer.cpu_linear = packed
    if isinstance(layer, ParallelLMHead) and getattr(layer, "bias", None) is not None:
        layer.cpu_linear = BiasedHead(packed, layer.bias)
    if _only_runs_packed(layer):
        layer.quant_method.embedding = lambda _, ids: packed.rows(ids)
        _free_weight(layer)


class BiasedHead:
    """An output layer with a bias of its own, which not every model of the host passes on."""

    def __init__(self, packed: ops.PackedLinear, bias: torch.Tensor) -> None:
        self._packed, self._bias = packed, bias

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [..., hidden] to logits; ``weight`` is not read, ``bias`` is this layer's own."""
        return self._packed(x, None, self._bias if bias is None else bias)


def _embeddings_are_tied() -> bool:
    config = get_current_vllm_config_or_none()
    if config is None or config.model_config is None:
        return True
    return bool(getattr(config.model_config.hf_text_config, "tie_word_embeddings", True))


def _only_runs_packed(layer: VocabParallelEmbedding) -> bool:
    """Whether nobody reads ``layer.weight`` itself: shards, adapters and draft models do."""
    config = get_current_vllm_config_or_none()
    return (
        layer.tp_size == 1
        and config is not None
        and config.lora_config is None
        and (
            config.speculative_config is None
            or not config.speculative_config.uses_draft_kv_cache()  # drafts without a model
        )
    )


def _free_weight(layer: torch.nn.Module) -> None:
    layer.weight = torch.nn.Parameter(layer.weight.new_empty(0), requires_grad=False)
