"""Linear layers behind the pooling are all there, or the model is refused.

What: ``_load_st_projector`` raises where it did not load every module Dense of modules.json.
Why: the host logs that, if anything, and answers with vectors without them.
Since: 0.32
Until: it ends.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend import sentence_modules
from cpu_backend.errors import ConfigError
from cpu_backend.host.seam import patch


@patch("vllm.model_executor.models.adapters", "_load_st_projector(model_config)")
def load_all(original: Any) -> Any:
    def load(model_config: Any) -> Any:
        layers = original(model_config)
        loaded = sum(isinstance(layer, torch.nn.Linear) for layer in layers or ())
        kinds = [kind for kind, _ in sentence_modules.behind(model_config)]
        if loaded != kinds.count("Dense"):
            raise ConfigError(
                f"Of the {kinds.count('Dense')} linear layers behind '{model_config.model}' "
                f"({sentence_modules.FILE}) {loaded} can be loaded: download it again, or choose "
                "another model."
            )
        return layers

    return load
