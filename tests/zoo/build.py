"""Small random models, written as checkpoints: a Spec says what is special about each."""

from __future__ import annotations

import functools
import inspect
import json
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

EAGER = {"attn_implementation": "eager"}  # transformers caps scores there only
FOR_GPUS = "is written for GPUs"  # of the sentence about classes of which the host has no others
WINDOW = 48  # tokens of a sliding window, less than the longer prompts

# What every model has unless its Spec differs: odd sizes, three query heads per key head, a
# vocabulary that does not fill the last tile.  Only what a config class knows is passed on to it.
BASE: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 192,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "sliding_window": WINDOW,
    # Mixtures, of numbers of experts that fill no vector.
    "num_experts": 20,
    "num_local_experts": 20,
    "n_routed_experts": 20,
    "moe_num_experts": 20,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 96,
    "shared_expert_intermediate_size": 80,
    "shared_intermediate_size": 80,
}
# Where a config's default is None the model is no mixture.
MIXTURE = ("num_experts", "moe_intermediate_size")
# Of configs of more than text.
TEXT_PARTS = ("text_config", "thinker_config", "vlm_config", "llm_config")
# Parameters whose values carry a meaning that random numbers would break.
KEPT = ("A_log", "dt_bias", "D")


@dataclass(frozen=True)
class Spec:
    """One architecture of the host.

    name: the host's, of the class in its registry; models: what people call what it runs;
    model_type and config: ``transformers``' config class and what differs from BASE.
    refused: words of the sentence that refuses it at start; host: of the exception with which the
    host itself fails (a pattern).  selected: runs by default.  note: for the table.
    part: which of the model's modules answers with logits; if empty, the model itself.
    reference: what the config of ``transformers`` has to say to mean what the host does; a name
    with dots is of the model's parts, and a function in place of a method gets that first.
    whole_prompts: a prompt's tokens attend to all of it, so it is read in one step, every time;
    uncached: the host keeps no prefixes of such a model.
    auto: the class that makes the model, of ``transformers`` or ``heads``; if empty, it has the
    host's name.
    published: patterns and replacements that turn the names of weights as ``transformers`` writes
    them into those of published checkpoints, or into nothing, which have the matrices whose names
    ``transposed`` matches in the other order.  "|0", "|1" and so on in a name: parts of one weight,
    which lie one after the other, by_key_head: for each key head.  in_pairs: a pattern of names and
    the size of a head: its channels that turn together, i and i + half of it, are published beside
    each other.  batched: a pattern of names of weights that have one dimension more, of size 1,
    before theirs.  padded: patterns of names, a dimension each, and its length as published, with
    zeros at its end.  published_config: makes the config of published checkpoints of the one that
    ``transformers`` writes.  needs: of tests/tools.py, without which neither side can run it.
    """

    name: str
    models: str
    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    refused: str = ""
    host: str = ""
    selected: bool = False
    note: str = ""
    reference: dict[str, Any] = field(default_factory=dict)
    part: str = ""
    auto: str = "AutoModelForCausalLM"
    whole_prompts: bool = False
    uncached: bool = False
    published: tuple[tuple[str, str], ...] = ()
    transposed: str = ""
    by_key_head: bool = False
    in_pairs: tuple[str, int] = ("", 0)
    batched: str = ""
    padded: tuple[tuple[str, int, int], ...] = ()
    published_config: Callable[[dict[str, Any]], dict[str, Any]] = dict
    needs: tuple[str, ...] = ()

    @property
    def cached(self) -> bool:
        """Whether prefixes of its prompts are found in the cache."""
        return not (self.whole_prompts or self.uncached)


def build(spec: Spec, folder: Path) -> torch.nn.Module:
    """What answers of the model in fp32 with random weights, which is also written to
    ``folder``."""
    import transformers

    from tests.zoo import heads

    config = make_config(spec)
    torch.manual_seed(20)
    name = spec.auto or spec.name
    maker = getattr(heads, name, None) or getattr(transformers, name)
    make = maker.from_config if name.startswith("Auto") else maker._from_config
    model = make(config, dtype=torch.float32).eval()
    randomize(model)
    model.save_pretrained(folder)
    write_as_published(spec, folder)
    name_architecture(spec, folder)
    for path, value in spec.reference.items():
        owner, _, name = path.rpartition(".")
        holder = operator.attrgetter(owner)(model) if owner else model.config
        if inspect.isfunction(value):
            value = functools.partial(value, getattr(holder, name))
        setattr(holder, name, value)
    part: torch.nn.Module = model.get_submodule(spec.part)
    return part


def make_config(spec: Spec) -> Any:
    """BASE and the Spec's own as a config of ``transformers``."""
    from transformers import AutoConfig

    from tests.zoo import heads  # noqa: F401 (registers configs)

    return AutoConfig.for_model(spec.model_type, **_over_base(spec.model_type, spec.config))


def _over_base(model_type: str, config: dict[str, Any]) -> dict[str, Any]:
    """``config`` and what its class knows of BASE; likewise the text part of a model that takes
    more than text."""
    from transformers import AutoConfig

    known = AutoConfig.for_model(model_type)
    names = {*known.to_dict(), *known.attribute_map}
    base = {
        name: value
        for name, value in BASE.items()
        if name in names and not (name in MIXTURE and getattr(known, name, 0) is None)
    }
    for part in TEXT_PARTS:
        if part in config:
            config = {**config, part: _over_base(config[part]["model_type"], config[part])}
    return {**base, **config}


def write_config(spec: Spec, folder: Path) -> None:
    """A checkpoint of one weight that no model has, for what is refused before it would be read."""
    from safetensors.torch import save_file

    make_config(spec).save_pretrained(folder)
    save_file({"of no model": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
    name_architecture(spec, folder)


def write_as_published(spec: Spec, folder: Path) -> None:
    """Give the weights in ``folder`` the names and the order that the Spec says."""
    from safetensors.torch import load_file, save_file

    if not spec.published and not spec.transposed:
        return
    path = folder / "model.safetensors"
    renamed = {}
    for name, weight in load_file(path).items():
        for pattern, replacement in spec.published:
            name = re.sub(pattern, replacement, name)
        if spec.transposed and re.search(spec.transposed, name):
            weight = weight.transpose(-1, -2).contiguous()
        pattern, size = spec.in_pairs
        if size and re.search(pattern, name):
            weight = weight.unflatten(0, (-1, 2, size // 2)).transpose(1, 2).flatten(0, 2)
        if spec.batched and re.search(spec.batched, name):
            weight = weight[None]
        for pattern, dimension, size in spec.padded:
            if re.search(pattern, name):
                shape = [*weight.shape]
                shape[dimension] = size - shape[dimension]
                weight = torch.cat([weight, weight.new_zeros(shape)], dimension)
        if name:
            renamed[name] = weight
    heads = make_config(spec).num_key_value_heads if spec.by_key_head else 1
    save_file(_joined(renamed, heads), path, {"format": "pt"})


def _joined(weights: dict[str, torch.Tensor], heads: int) -> dict[str, torch.Tensor]:
    """Parts of a weight as one, for each of so many heads."""
    whole: dict[str, list[torch.Tensor]] = {}
    for name in sorted(weights):
        whole.setdefault(re.sub(r"\|\d", "", name), []).append(weights[name])
    return {
        name: torch.cat([part.unflatten(0, (heads, -1)) for part in parts], 1).flatten(0, 1)
        if len(parts) > 1
        else parts[0]
        for name, parts in whole.items()
    }


def name_architecture(spec: Spec, folder: Path) -> None:
    """Have the host load its class ``spec.name``, whatever ``transformers`` calls its own."""
    path = folder / "config.json"
    config = spec.published_config(json.loads(path.read_text()))
    path.write_text(json.dumps({**config, "architectures": [spec.name]}, indent=1))


@torch.no_grad()
def randomize(model: torch.nn.Module) -> None:
    """Weights with which the text depends on the whole prompt, and no bias or norm is idle."""
    done: set[int] = set()  # tied parameters are one
    # With a tied head, a large embedding of the last token would outweigh all layers.
    tied = getattr(model.config, "tie_word_embeddings", False)
    embedding = 0.05 if tied else 0.7
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in done and name not in KEPT and "Conv" not in _library(module):
                done.add(id(parameter))
                _randomize(parameter, module, embedding)
        for name, buffer in module.named_buffers(recurse=False):
            if name.endswith("bias") and buffer.is_floating_point():  # a router's correction
                buffer.add_(torch.randn_like(buffer), alpha=0.1)


def _library(module: torch.nn.Module) -> str:
    """The class's name if it is torch's own."""
    return type(module).__name__ if type(module).__module__.startswith("torch.") else ""


def _randomize(parameter: torch.Tensor, module: torch.nn.Module, embedding: float) -> None:
    noise = torch.randn_like(parameter)
    if isinstance(module, torch.nn.Embedding):
        parameter.copy_(noise * embedding)
    elif parameter.dim() >= 2:
        transposed = type(module).__name__ == "Conv1D"  # GPT-2's linear layers
        fan_in = parameter.shape[0 if transposed else -1]
        if isinstance(module, torch.nn.Conv1d):  # a model's own kind of it
            fan_in = parameter[0].numel()
        parameter.copy_(noise * (0.9 / math.sqrt(fan_in)))
    else:
        parameter.add_(noise, alpha=0.1)
