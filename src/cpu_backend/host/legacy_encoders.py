"""Encoders that the host computes by a class of transformers are right, or refused in a sentence.

What: ``LegacyMixin`` counts positions from that of padding on for all that do so in transformers,
    CamemBERT and Data2Vec among them; classifiers behind a pooler, as ERNIE's, are refused, and so
    are models whose attention the host cannot take over, as DistilBERT's.
Why: the host looks for "roberta" in the name, leaves poolers out, and ends without saying which
    model it is about.
Since: 0.30
Until: it asks the model, and computes the pooler.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend.errors import ConfigError
from cpu_backend.host.seam import Hosts, When, patch

FOLDER = "vllm.model_executor.models.transformers"
COUNTS = "create_position_ids_from_input_ids"  # of embeddings in transformers


@patch(
    f"{FOLDER}.legacy",
    "LegacyMixin.__init__(self, *, vllm_config, prefix)",
    when=When.COMPUTING,
)
def count_from_padding(original: Any) -> Any:
    def __init__(self: Any, *, vllm_config: Any, prefix: str = "") -> None:  # noqa: N807
        original(self, vllm_config=vllm_config, prefix=prefix)
        self.is_roberta |= any(hasattr(module, COUNTS) for module in self.model.modules())

    return __init__


@patch(
    f"{FOLDER}.pooling",
    "SequenceClassificationMixin.__init__(self, *, vllm_config, prefix)",
    when=When.COMPUTING,
)
def refuse_poolers(original: Any) -> Any:
    def __init__(self: Any, *, vllm_config: Any, prefix: str = "") -> None:  # noqa: N807
        original(self, vllm_config=vllm_config, prefix=prefix)
        if isinstance(getattr(self.model, "pooler", None), torch.nn.Module):
            raise _refusal(self, "classifies behind a pooler, which vLLM leaves out")

    return __init__


@patch(
    f"{FOLDER}.base",
    "Base._create_attention_instances(self)",
    when=When.COMPUTING,
    hosts=Hosts(until=(0, 32)),
)
@patch(
    f"{FOLDER}.base",
    "Base._create_attention_instances(self, prefix)",
    when=When.COMPUTING,
    hosts=Hosts(since=(0, 32)),
)
def name_the_model(original: Any) -> Any:
    def create(self: Any, *prefix: str) -> Any:
        try:
            return original(self, *prefix)
        except ValueError as error:
            raise _refusal(self, "has an attention that vLLM cannot take over") from error

    return create


def _refusal(model: Any, what: str) -> ConfigError:
    return ConfigError(
        f"{type(model.model).__name__}, for which vLLM takes the class of transformers, {what}: "
        "choose another model."
    )
