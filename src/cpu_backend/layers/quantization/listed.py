"""Schemes whose quantized modules are those that the checkpoint has quantized, by its tensors.

The rules that config.json gives are those of another program's module names, and the host's may be
other ones: a router or a gate of one channel is quantized there and made without a scheme here, or
the other way around.  What the files have is what there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from cpu_backend.errors import ConfigError
from cpu_backend.host.bases import get_safetensors_params_metadata
from cpu_backend.layers.quantization.packing import shards_of

if TYPE_CHECKING:
    from cpu_backend.host.quantized_bases import WeightsMapper


class Listed:
    """A mixin before a QuantizationConfig.

    ending: of the tensor that only a quantized module has, in the place of ``.weight``.
    known: whether the checkpoint's names could be read, which are those of safetensors.
    modules: name in the model -> in the checkpoint.  kept: of the checkpoint's names, those that
    stay quantized.
    """

    ending: str
    packed_modules_mapping: dict[str, list[str]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.known = False
        self.modules: dict[str, str] = {}
        self.kept: set[str] = set()

    def maybe_update_config(
        self, model_name: str, hf_config: Any = None, revision: str | None = None
    ) -> None:
        """The host's call with the checkpoint's place."""
        del hf_config
        names = get_safetensors_params_metadata(model_name, revision=revision)
        self.known = bool(names)
        found = [n.removesuffix(self.ending) for n in names if n.endswith(self.ending)]
        self.modules = dict(zip(found, found, strict=True))

    def apply_vllm_mapper(self, hf_to_vllm_mapper: WeightsMapper) -> None:
        """Names of the checkpoint to those of the model."""
        self.modules = hf_to_vllm_mapper.apply_dict(self.modules)

    def keeps(self, prefix: str) -> bool:
        """Whether a linear layer is quantized.  Raises ConfigError where a part of it is."""
        path, _, last = prefix.rpartition(".")
        shards = shards_of(last, self.packed_modules_mapping, prefix in self.modules)
        names = [f"{path}.{shard}" if path else shard for shard in shards]
        found = [self.modules[name] for name in names if name in self.modules]
        if 0 < len(found) < len(names):
            raise ConfigError(
                f"{prefix} is one layer here, and the checkpoint has quantized some of its parts "
                f"({', '.join(shards)}) and others not: choose another checkpoint."
            )
        self.kept.update(found)
        return bool(found)

    def keeps_experts(self, prefix: str) -> bool:
        """The same of a mixture of experts."""
        found = [of for name, of in self.modules.items() if name.startswith(f"{prefix}.")]
        self.kept.update(found)
        return bool(found)


def kept(model: torch.nn.Module) -> set[str] | None:
    """The checkpoint's names of what stays quantized in ``model``, if that is known."""
    methods = (getattr(module, "quant_method", None) for module in model.modules())
    configs = (getattr(method, "listed", None) for method in methods)
    listed = next((config for config in configs if config is not None), None)
    return listed.kept if listed is not None and listed.known else None
