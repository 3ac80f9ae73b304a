"""What sentence-transformers puts behind a model (modules.json), of which the host has a part.

The host pools in three ways, multiplies with linear layers and normalizes, in this order.  Of what
else is listed it takes no notice, or logs a line, and answers with other vectors.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.errors import ConfigError
from cpu_backend.host import sentence_files

IN_ORDER = ("Pooling", "Dense", "Normalize")
MISSING = ("CNN", "LSTM", "LayerNorm", "Router", "Asym", "WeightedLayerPooling", "WordWeights")
POOLED = ("cls", "cls_token", "lasttoken", "mean", "mean_tokens")
# The mean but for its length, which norms make the same.
SCALED = "mean_sqrt_len_tokens"


def check(model: Any) -> None:
    """Refuse a model whose vectors would not be those of its modules.

    model: the host's ModelConfig.  Raises ConfigError.
    """
    if model.runner_type != "pooling":
        return
    modules = sentence_files.behind(model)
    kinds = [kind for kind, _ in modules]
    for kind in kinds:
        if kind in MISSING:
            raise _refusal(model, f"a module {kind}, which vLLM does not have")
    known = [IN_ORDER.index(kind) for kind in kinds if kind in IN_ORDER]
    if known != sorted(known):
        raise _refusal(model, f"modules in the order {', '.join(kinds)}, which vLLM does not keep")
    sources = getattr(model, "_pooler_config_sources", {})
    if sources.get("seq_pooling_type") != "user":
        for folder in (folder for kind, folder in modules if kind == "Pooling"):
            _check_pooling(model, folder, kinds)


def _check_pooling(model: Any, folder: str, kinds: list[str]) -> None:
    config = sentence_files.read(model, f"{folder}/config.json") or {}
    ways = config.get("pooling_mode") or [
        name.removeprefix("pooling_mode_")
        for name, value in config.items()
        if name.startswith("pooling_mode_") and value is True
    ]
    ways = [ways] if isinstance(ways, str) else list(ways)
    if len(ways) > 1:
        raise _refusal(
            model, f"several kinds of pooling ({', '.join(ways)}), of which vLLM has one"
        )
    right = (*POOLED, SCALED) if kinds == ["Pooling", "Normalize"] else POOLED
    if ways and ways[0] not in right:
        raise _refusal(model, f"a pooling by {ways[0]}, which vLLM does not have")


def _refusal(model: Any, what: str) -> ConfigError:
    return ConfigError(
        f"'{model.model}' has {what} ({sentence_files.MODULES}), so its vectors would be wrong: "
        "choose another model."
    )
