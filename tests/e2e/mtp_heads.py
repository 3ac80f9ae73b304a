"""Layers of a model's own that draft for it (MTP), in small random models of the zoo whose other
weights are chosen so that one knows which drafts are right.

The layer reads the embedding of the token that was drawn last and the model's state before it, both
behind norms and a projection of the two; what follows is a layer like the model's.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.e2e import drafts

# Of matrices without which a layer adds nothing.
OUTPUTS = ("o_proj.weight", "down_proj.weight", "attention.dense.weight")
TABLES = ("model.embed_tokens.weight", "model.word_embeddings.weight")


@dataclass(frozen=True)
class Head:
    """What the weights of such a layer are called in published checkpoints.

    prefix: of all names, with the number of the model's layers as {layers}; layer: of the layer's
    own, behind that.  like: the model's layer whose weights it gets; names: patterns and
    replacements that turn its names into the head's, or into nothing.  hidden_first: the projection
    reads the state before the embedding.  copies: of the model's table and head, by the head's
    names for them.  model: what the model's config has besides what the zoo says.
    """

    prefix: str = "model.layers.{layers}."
    layer: str = ""
    like: int = -1
    names: tuple[tuple[str, str], ...] = ()
    embedding_norm: str = "enorm"
    hidden_norm: str = "hnorm"
    projection: str = "eh_proj"
    final_norm: str = "shared_head.norm"
    hidden_first: bool = False
    copies: tuple[str, ...] = ()
    model: dict[str, Any] = field(default_factory=dict)


LIKE_DEEPSEEK = Head(copies=("embed_tokens", "shared_head.head"))
HEADS = {
    "BailingMoeV2_5ForCausalLM": Head(final_norm="final_layernorm"),
    "DeepseekV3ForCausalLM": LIKE_DEEPSEEK,
    "ExaoneMoeForCausalLM": Head(
        prefix="mtp.",
        layer="layers.0.",
        like=0,
        embedding_norm="pre_fc_norm_embedding",
        hidden_norm="pre_fc_norm_hidden",
        projection="fc",
        final_norm="norm",
    ),
    "Glm4MoeForCausalLM": LIKE_DEEPSEEK,
    "Glm4MoeLiteForCausalLM": LIKE_DEEPSEEK,
    "HYV3ForCausalLM": Head(final_norm="final_layernorm"),
    "LongcatFlashForCausalLM": Head(
        prefix="model.mtp.",
        layer="layers.0.",
        names=(
            (r".*(\.1\.|mlp\.).*", ""),
            (r"(self_attn|layernorm)\.0\.", r"\1."),
            (r"mlps\.0\.", "transformer_layer.mlp."),
        ),
        embedding_norm="layers.0.enorm.m",
        hidden_norm="layers.0.hnorm.m",
        projection="layers.0.eh_proj",
        final_norm="norm",
        copies=("embed_tokens",),
    ),
    "MiMoForCausalLM": Head(
        prefix="model.mtp_layers.0.",
        embedding_norm="token_layernorm",
        hidden_norm="hidden_layernorm",
        projection="input_proj",
        final_norm="final_layernorm",
        hidden_first=True,
    ),
    "MiMoV2FlashForCausalLM": Head(
        prefix="model.mtp.layers.0.",
        like=0,
        names=((r"post_attention_layernorm", "pre_mlp_layernorm"),),
        final_norm="final_layernorm",
        model={"layer_types": ["sliding_attention", *["full_attention"] * 3]},
    ),
}


def write(target: Path, name: str, *, by_states: bool = False) -> Path:
    """Write a model of the zoo with a layer that drafts.

    Of the model's layers all but the one it is a copy of add nothing then.  It reads embeddings
    alone, so it drafts what the model does but for its first tokens, which that layer does not see.
    by_states: no layer adds anything, so that each token decides the next one, and the head draws
    it from the state before alone: it is always right.
    """
    head = HEADS[name]
    drafts.write_small(target, name, **head.model)
    weights = load_file(target / "model.safetensors")
    config = json.loads((target / "config.json").read_text())
    layers = config.get("num_layers") or config["num_hidden_layers"]
    like = f"model.layers.{head.like % layers}."
    prefix = head.prefix.format(layers=layers)

    for part in weights:
        if part.endswith(OUTPUTS) and (by_states or not _copied(part, like, head)):
            weights[part].zero_()
        if part.endswith("router.e_score_correction_bias"):
            weights[part][config["n_routed_experts"] :] = -100  # identities add what they are given
    for part in [part for part in weights if part.startswith(like)]:
        if copied := _copied(part, like, head):
            weights[prefix + head.layer + copied] = weights[part].clone()

    [table] = (weights[name] for name in weights if name.endswith(TABLES))
    table.copy_(torch.nn.functional.rms_norm(table, table.shape[1:]))
    channels = table.shape[1]
    norm, output = weights["model.norm.weight"], weights["lm_head.weight"]
    by_embedding, by_state = torch.eye(channels), torch.zeros(channels, channels)
    if by_states:
        norm.fill_(1)
        output.copy_(table.roll(1, 0))  # the next one in the table
        by_embedding, by_state = by_state, table.roll(-1, 0).T @ torch.linalg.pinv(table.T)
    read = [by_state, by_embedding] if head.hidden_first else [by_embedding, by_state]
    added = {
        head.embedding_norm: torch.ones(channels),
        head.hidden_norm: torch.ones(channels),
        head.projection: torch.cat(read, 1),
        head.final_norm: norm.clone(),
        **{copy: (table if "embed" in copy else output).clone() for copy in head.copies},
    }
    weights |= {f"{prefix}{part}.weight": weight for part, weight in added.items()}
    config["num_nextn_predict_layers"] = 1
    (target / "config.json").write_text(json.dumps(config))
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def _copied(name: str, like: str, head: Head) -> str:
    """What a weight of the model is called in the head; nothing if that has none of it."""
    if not name.startswith(like):
        return ""
    name = name.removeprefix(like)
    for pattern, replacement in head.names:
        name = re.sub(pattern, replacement, name)
    return name
