"""Linear layers that sentence-transformers puts behind the pooling are all there, or refused.

What: ``_load_st_projector`` raises where it did not load every module Dense of modules.json.
Why: the host logs that, if anything, and answers with vectors without them.
Since: 0.32
Until: it ends.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend.errors import ConfigError
from cpu_backend.host.seam import patch

MODULES = "modules.json"


@patch("vllm.model_executor.models.adapters", "_load_st_projector(model_config)")
def load_all(original: Any) -> Any:
    def load(model_config: Any) -> Any:
        layers = original(model_config)
        loaded = sum(isinstance(layer, torch.nn.Linear) for layer in layers or ())
        listed = sum(kind == "Dense" for kind, _ in behind(model_config))
        if loaded != listed:
            raise ConfigError(
                f"Of the {listed} linear layers behind '{model_config.model}' ({MODULES}) "
                f"{loaded} can be loaded: download it again, or choose another model."
            )
        return layers

    return load


def behind(model: Any) -> list[tuple[str, str]]:
    """Kind ("Dense") and folder of each module behind the model, which comes first.

    model: the host's ModelConfig.
    """
    listed = read(model, MODULES)
    if not isinstance(listed, list):
        return []
    return [(module["type"].rpartition(".")[2], module["path"]) for module in listed[1:]]


def read(model: Any, name: str) -> Any:
    """A file in JSON of the checkpoint; None if there is none."""
    from vllm.transformers_utils.repo_utils import get_hf_file_to_dict

    return get_hf_file_to_dict(name, model.model, model.revision)
