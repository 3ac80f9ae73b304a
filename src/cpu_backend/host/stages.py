"""A stage of a pipeline reads the weights of its own layers alone.

What: what the loader of checkpoints gives to a model leaves out numbered layers of other stages.
Why: most of the host's classes pass over them, some do not: Granite 4 looks for their routers, and
    GPT-2 has turned their matrices by then, which looks as if it had taken them.
Since: 0.30
Until: the host's loader leaves them out.
"""

from __future__ import annotations

import re
from typing import Any

from cpu_backend.host.seam import When, patch
from cpu_backend.host.whole_weights import LOADER

LAYER = re.compile(r"\w+\.(\w+\.\d+\.)|.*\.\d+\.")


@patch(LOADER, "DefaultModelLoader.get_all_weights(self, model_config, model)", when=When.COMPUTING)
def leave_out(original: Any) -> Any:
    """By their names in the checkpoint, which may lack the model's own first part."""

    def get_all_weights(self: Any, model_config: Any, model: Any) -> Any:
        from vllm.model_executor.models.utils import get_pp_missing_layer_names

        found = [LAYER.fullmatch(name) for name in get_pp_missing_layer_names(model)]
        elsewhere = tuple(part for name in found if name for part in (name[0], name[1]) if part)
        weights = original(self, model_config, model)
        return (pair for pair in weights if not pair[0].startswith(elsewhere))

    return get_all_weights
