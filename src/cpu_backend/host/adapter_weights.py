"""An adapter with weights that no layer takes is refused.

What: after an adapter is read, the names of its matrices are held against the layers that take
    any.
Why: the host looks at the last part of each name alone, and drops what fits no layer without a
    word: the adapter answers as another one then.
Since: 0.30
Until: the host refuses them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from cpu_backend.errors import ConfigError
from cpu_backend.host.seam import When, patch

NAMED = 3  # in the sentence
UNEXPECTED = re.compile(r"but received (\[[^\]]*\])")  # in the host's


@patch(
    "vllm.lora.worker_manager",
    "WorkerLoRAManager._load_adapter(self, lora_request)",
    when=When.COMPUTING,
)
def refuse_what_is_dropped(original: Any) -> Any:
    """With a sentence that names the first of them."""

    def _load_adapter(self: Any, lora_request: Any) -> Any:
        try:
            adapter = original(self, lora_request)
        except ValueError as error:  # which lists the names of all layers that there are
            found = UNEXPECTED.search(str(error))
            if found is None:
                raise
            raise _refusal(self, lora_request, ast.literal_eval(found[1])) from error
        taken = set(_taken(self._adapter_manager))
        missing = tuple(_elsewhere(self._adapter_manager))
        dropped = [
            name
            for name in adapter.loras
            if name not in taken and not f"{name}.".startswith(missing)
        ]
        if dropped:
            raise _refusal(self, lora_request, dropped)
        return adapter

    return _load_adapter


def _refusal(self: Any, lora_request: Any, names: list[str]) -> ConfigError:
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    way_out = "train it without them"
    if self._adapter_manager.lora_config.target_modules is not None:
        way_out = "name their layers in --lora-target-modules, too"
    return ConfigError(
        f"the LoRA adapter {lora_request.lora_name} has weights for {', '.join(names[:NAMED])}"
        f"{more}, which vLLM's {type(self._adapter_manager.model).__name__} cannot add adapters "
        f"to here: {way_out}, or serve a checkpoint that it is merged into."
    )


def _taken(manager: Any) -> Iterator[str]:
    """The names that the layers of ``manager`` are given weights by."""
    from vllm.lora.layers import FusedMoEWithLoRA

    for name, layer in manager.modules.items():
        names = [name, *manager.packed_modules.get(name, ())]
        if isinstance(layer, FusedMoEWithLoRA):  # of gate and up projections of all experts
            names.append(f"{name}.base_layer")
        for one in names:
            yield one
            if manager.is_pooling_model:  # where the host looks for these, too
                yield one.removeprefix("model.")


def _elsewhere(manager: Any) -> Iterator[str]:
    """How the names begin of layers that another stage has."""
    from vllm.model_executor.models.utils import PPMissingLayer

    for name, layer in manager.model.named_modules():
        if isinstance(layer, PPMissingLayer):
            yield f"{name}."
