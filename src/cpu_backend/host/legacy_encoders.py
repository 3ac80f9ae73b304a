"""Encoders that the host computes by a class of transformers are right, or refused in a sentence.

What: ``LegacyMixin`` counts positions from that of padding on for all that do so in transformers,
    CamemBERT and Data2Vec among them, and is given the projection of embeddings that a model has,
    as ELECTRA's small ones do; classifiers behind a pooler, as ERNIE's, or another layer, as
    EuroBERT's, are refused, and so are models whose attention the host cannot take over, as
    DistilBERT's.
Why: the host looks for "roberta" in the name, passes over weights of such projections, leaves
    poolers and other layers out, and ends without saying which model it is about.
Since: 0.30
Until: it asks the model, and computes all layers before the classifier.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from cpu_backend.errors import ConfigError
from cpu_backend.host.seam import Hosts, When, patch

FOLDER = "vllm.model_executor.models.transformers"
COUNTS = "create_position_ids_from_input_ids"  # of embeddings in transformers
PROJECTION = "embeddings_project"
CLASSIFIERS = ("classifier", "score")  # the layers that the host takes


@patch(
    f"{FOLDER}.legacy",
    "LegacyMixin.__init__(self, *, vllm_config, prefix)",
    when=When.COMPUTING,
)
def ask_the_model(original: Any) -> Any:
    from vllm.model_executor.models.utils import WeightsMapper

    def __init__(self: Any, *, vllm_config: Any, prefix: str = "") -> None:  # noqa: N807
        original(self, vllm_config=vllm_config, prefix=prefix)
        self.is_roberta |= any(hasattr(module, COUNTS) for module in self.model.modules())
        if hasattr(self.model, PROJECTION):
            name = f"model.{PROJECTION}."
            self.hf_to_vllm_mapper |= WeightsMapper(orig_to_new_prefix={name: name})

    return __init__


@patch(
    f"{FOLDER}.pooling",
    "SequenceClassificationMixin.__init__(self, *, vllm_config, prefix)",
    when=When.COMPUTING,
)
def refuse_what_is_left_out(original: Any) -> Any:
    def __init__(self: Any, *, vllm_config: Any, prefix: str = "") -> None:  # noqa: N807
        original(self, vllm_config=vllm_config, prefix=prefix)
        if isinstance(getattr(self.model, "pooler", None), torch.nn.Module):
            raise _refusal(self, "classifies behind a pooler, which vLLM leaves out")
        if name := next(_before_the_classifier(self), ""):
            raise _refusal(self, f"classifies behind a layer ({name}) that vLLM leaves out")

    return __init__


def _before_the_classifier(model: Any) -> Iterator[str]:
    """The names of layers of transformers' class beside its encoder and its classifier."""
    from transformers import AutoModelForSequenceClassification

    with torch.device("meta"):
        whole = AutoModelForSequenceClassification.from_config(
            model.config, trust_remote_code=model.model_config.trust_remote_code
        )
    for name, layer in whole.named_children():
        known = layer is whole.base_model or name in CLASSIFIERS
        if not known and any(True for _ in layer.parameters()):
            yield name


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
