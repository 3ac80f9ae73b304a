"""Models that draft for the demo model: its first layers, and heads of random numbers.

A head of random numbers is nearly always wrong, and what it drafts must change nothing.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.zoo import build, text_specs

DRAFT_VOCABULARY = 2000  # of the EAGLE-3 head: every tenth of the target's tokens
SMALL_VOCABULARY = 16
CODE = """\
from transformers import DeepseekV3Config


class Config(DeepseekV3Config):
    model_type = "bailing_hybrid"
"""


def write_first_layers(source: Path, target: Path, layers: int) -> Path:
    """Copy the checkpoint ``source`` to ``target`` with its first ``layers`` alone."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((source / "config.json").read_text()) | {"num_hidden_layers": layers}
    (target / "config.json").write_text(json.dumps(config))
    weights = {
        name: weight
        for name, weight in load_file(source / "model.safetensors").items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < layers
    }
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def write_head(source: Path, target: Path, kind: str) -> Path:
    """Write an EAGLE head for the Llama checkpoint ``source``; kind: "eagle" or "eagle3"."""
    target.mkdir()
    config = json.loads((source / "config.json").read_text()) | {"num_hidden_layers": 1}
    config["tie_word_embeddings"] = False
    hidden, inner, head = (
        config["hidden_size"],
        config["intermediate_size"],
        config["head_dim"],
    )
    query, key = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    is_third = kind == "eagle3"
    layer = "midlayer" if is_third else "layers.0"
    read = 2 * hidden if is_third else hidden
    shapes: dict[str, tuple[int, ...]] = {
        f"{layer}.self_attn.q_proj": (query, read),
        f"{layer}.self_attn.k_proj": (key, read),
        f"{layer}.self_attn.v_proj": (key, read),
        f"{layer}.self_attn.o_proj": (hidden, query),
        f"{layer}.mlp.gate_proj": (inner, hidden),
        f"{layer}.mlp.up_proj": (inner, hidden),
        f"{layer}.mlp.down_proj": (hidden, inner),
        f"{layer}.post_attention_layernorm": (hidden,),
        "fc": (hidden, (3 if is_third else 2) * hidden),
    }
    if is_third:
        config |= {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": DRAFT_VOCABULARY,
            "eagle_aux_hidden_state_layer_ids": [1, 3, 5],
        }
        shapes |= {
            f"{layer}.hidden_norm": (hidden,),
            f"{layer}.input_layernorm": (hidden,),
            "norm": (hidden,),
            "lm_head": (DRAFT_VOCABULARY, hidden),
        }
    weights = random_weights(shapes)
    if is_third:
        weights["d2t"] = torch.arange(DRAFT_VOCABULARY) * 9
    (target / "config.json").write_text(json.dumps(config))
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def write_latent_head(source: Path, target: Path) -> Path:
    """Write an EAGLE-3 head with latent attention for the DeepSeek checkpoint ``source``."""
    target.mkdir()
    config = json.loads((source / "config.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    attention = f"model.layers.{config['num_hidden_layers'] - 1}.self_attn."
    shapes = {
        name.replace(attention, "midlayer.self_attn.").removesuffix(".weight"): weight.shape
        for name, weight in load_file(source / "model.safetensors").items()
        if name.startswith(attention)
    }
    for reads_both in ("q_a_proj", "kv_a_proj_with_mqa"):  # the embedding and the state
        rows, _ = shapes[f"midlayer.self_attn.{reads_both}"]
        shapes[f"midlayer.self_attn.{reads_both}"] = (rows, 2 * hidden)
    shapes |= {
        "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
        "midlayer.hidden_norm": (hidden,),
        "midlayer.input_layernorm": (hidden,),
        "midlayer.post_attention_layernorm": (hidden,),
        "fc": (hidden, 3 * hidden),
        "norm": (hidden,),
        "lm_head": (config["vocab_size"], hidden),
    }
    config |= {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "num_hidden_layers": 1,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    }
    (target / "config.json").write_text(json.dumps(config))
    save_file(random_weights(shapes), target / "model.safetensors", metadata={"format": "pt"})
    return target


def write_with_own_head(target: Path) -> Path:
    """Write a small random ERNIE 4.5 mixture with a layer that predicts the token after next."""
    spec = build.Spec(
        "Ernie4_5_MoeForCausalLM",
        "ERNIE 4.5 with its head",
        "ernie4_5_moe",
        {"moe_layer_end_index": 2, "moe_num_shared_experts": 1},
    )
    build.build(spec, target)
    config: dict[str, Any] = json.loads((target / "config.json").read_text())
    config["num_nextn_predict_layers"] = 1
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    query, key = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {
        "mtp_emb_norm.0": (hidden,),
        "mtp_hidden_norm.0": (hidden,),
        "mtp_linear_proj.0": (hidden, 2 * hidden),
        "mtp_block.0.self_attn.q_proj": (query, hidden),
        "mtp_block.0.self_attn.k_proj": (key, hidden),
        "mtp_block.0.self_attn.v_proj": (key, hidden),
        "mtp_block.0.self_attn.o_proj": (hidden, query),
        "mtp_block.0.mlp.gate_proj": (inner, hidden),
        "mtp_block.0.mlp.up_proj": (inner, hidden),
        "mtp_block.0.mlp.down_proj": (hidden, inner),
        "mtp_block.0.input_layernorm": (hidden,),
        "mtp_block.0.post_attention_layernorm": (hidden,),
    }
    weights = load_file(target / "model.safetensors")
    dtype = next(iter(weights.values())).dtype
    weights |= {
        f"model.{name}": weight.to(dtype) for name, weight in random_weights(shapes).items()
    }
    (target / "config.json").write_text(json.dumps(config))
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def write_small(target: Path, name: str, **config: Any) -> Path:
    """Write a small random model of the zoo, of so small a vocabulary that drafts are right now and
    then; config: what it has besides."""
    spec = next(spec for spec in text_specs.SPECS if spec.name == name)
    config = spec.config | config | {"vocab_size": SMALL_VOCABULARY}
    build.build(replace(spec, config=config), target)
    config = json.loads((target / "config.json").read_text())
    if config["model_type"] == "bailing_hybrid":
        # Published with code that reads it; the engine's process does not have the zoo's.
        (target / "configuration.py").write_text(CODE)
        config["auto_map"] = {"AutoConfig": "configuration.Config"}
        (target / "config.json").write_text(json.dumps(config))
    return target


def write_with_states(target: Path, name: str) -> Path:
    """The same with recurrent states.  Some have layers that predict the token after next
    (HEADS)."""
    write_small(target, name)
    if name in HEADS:
        config = json.loads((target / "config.json").read_text())
        weights = load_file(target / "model.safetensors")
        config |= HEADS[name](weights, config)
        (target / "config.json").write_text(json.dumps(config))
        save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


Weights = dict[str, torch.Tensor]


def add_qwen_head(weights: Weights, config: dict[str, Any]) -> dict[str, Any]:
    """Copies the attention layer; returns what config.json says besides."""
    hidden = config["hidden_size"]
    _copy_layer(weights, f"model.layers.{config['layer_types'].index('full_attention')}.", 0)
    for norm in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"):
        weights[f"mtp.{norm}.weight"] = weights["model.norm.weight"].clone()
    weights |= random_weights({"mtp.fc": (hidden, 2 * hidden)})
    return {}


def add_nemotron_head(weights: Weights, config: dict[str, Any]) -> dict[str, Any]:
    """The same with a layer of experts behind that of attention."""
    hidden, kinds = config["hidden_size"], ["full_attention", "moe"]
    for number, kind in enumerate(kinds):
        layer = config["layers_block_type"].index(kind)
        _copy_layer(weights, f"backbone.layers.{layer}.", number)
    for norm in ("0.enorm", "0.hnorm", "1.final_layernorm"):
        weights[f"mtp.layers.{norm}.weight"] = weights["backbone.norm_f.weight"].clone()
    weights |= random_weights({"mtp.layers.0.eh_proj": (hidden, 2 * hidden)})
    return {"num_nextn_predict_layers": 1, "mtp_layers_block_type": kinds}


HEADS = {"Qwen3NextForCausalLM": add_qwen_head, "NemotronHForCausalLM": add_nemotron_head}


def _copy_layer(weights: Weights, layer: str, number: int) -> None:
    """As ``mtp.layers.number``."""
    weights |= {
        name.replace(layer, f"mtp.layers.{number}."): weight.clone()
        for name, weight in weights.items()
        if name.startswith(layer)
    }


def make_head_right(target: Path) -> None:
    """Let a model's layers add nothing, and its own head pass on the embedding it reads: each token
    decides the next one, to both alike."""
    weights = load_file(target / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            weight.zero_()
    weights["mtp.pre_fc_norm_embedding.weight"].zero_()  # of Gemma's kind: 1 + weight
    read = weights["mtp.fc.weight"]
    read.copy_(torch.eye(*read.shape))  # the embedding's half, then the hidden state's
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


def random_weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Matrices of small random numbers and norms of ones, from a fixed seed."""
    seeded = torch.Generator().manual_seed(7)
    return {
        f"{name}.weight": torch.ones(shape)
        if len(shape) == 1
        else torch.randn(shape, generator=seeded) / shape[-1] ** 0.5
        for name, shape in shapes.items()
    }
