"""``python -m tests.zoo.gguf_files [NAMES]``: models out of GGUF files that llama.cpp's own
converter wrote: in F32 judged as their checkpoints are (``text.py``), in Q8_0 as formats are
(``rounding.py``).  One JSON line per model.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from cpu_backend.errors import ConfigError
from cpu_backend.gguf import architectures
from cpu_backend.gguf.architectures import phi
from cpu_backend.gguf.checkpoint import Checkpoint
from cpu_backend.gguf.reader import GgufFile
from tests.zoo import judge, rounding, run, text
from tests.zoo.build import BASE, Spec
from tests.zoo.judge import Outcome
from tests.zoo.mistral import MINISTRAL
from tests.zoo.renamed_mixture_specs import LLAMA3, mimo, step
from tests.zoo.tokens import ANSWERS, SPECIAL, write_tokenizer
from tools import llama_cpp

SECONDS = 900
Q8_0 = 0.006  # of what its rounding costs, relative to a weight's size
OTHERS = (np.ones(2, int), np.ones(0), np.full(99, 2), ["a"], "text", 0, 3, -1.5, True, 1 << 40)
FACTORS = [1 + channel / 8 for channel in range(16)]
# The host takes the factors of long texts wherever these may be long, transformers where they are.
PHI_MOE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 64,
    "long_factor": FACTORS,
    "short_factor": FACTORS,
    "long_mscale": phi.MSCALE,
    "short_mscale": phi.MSCALE,
}
# Of models that the host computes as others.
OTHERS = (
    Spec(
        "Dots1ForCausalLM",
        "dots.llm1",
        "dots1",
        {
            "first_k_dense_replace": 1,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 2,
            "routed_scaling_factor": 2.5,
            "sliding_window": None,
        },
    ),
)
NOT_ALL = [10000.0, 0, 10000.0]  # layers have positions
# What Step 3.5's files have the result of.
STEP_ROPE = {**LLAMA3, "original_max_position_embeddings": 131072}
# What a GGUF file does not say and llama.cpp takes for granted.
GRANTED: dict[str, dict[str, Any]] = {
    "AfmoeForCausalLM": {"mup_enabled": True},
    "BailingMoeForCausalLM": {"first_k_dense_replace": 0},
    "Cohere2ForCausalLM": {"rotary_pct": 1.0},
    "Cohere2MoeForCausalLM": {
        "expert_selection_fn": "sigmoid",
        "intermediate_size": 96,
        "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
        "mlp_layer_types": ["dense", *["sparse"] * 3],
        "num_shared_experts": 2,
        "prefix_dense_intermediate_size": 352,
    },
    # Factors are multiplied into weights.
    "FalconH1ForCausalLM": {
        "attention_in_multiplier": 0.9,
        "attention_out_multiplier": 0.8,
        "embedding_multiplier": 1.5,
        "key_multiplier": 0.7,
        "lm_head_multiplier": 1.25,
        "mlp_multipliers": [0.9, 1.1],
        "ssm_in_multiplier": 1.25,
        "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
        "ssm_out_multiplier": 0.9,
    },
    "FalconMambaForCausalLM": {"intermediate_size": 2 * BASE["hidden_size"]},
    "Gemma2ForCausalLM": {"query_pre_attn_scalar": 32},
    "Gemma3ForCausalLM": {
        "query_pre_attn_scalar": 32,
        "num_hidden_layers": 7,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
    },
    "GraniteMoeSWAForCausalLM": {"layer_rope_theta": NOT_ALL},
    "GraniteSWAForCausalLM": {"layer_rope_theta": NOT_ALL},
    # Of checkpoints that are older than transformers' class.
    "HunYuanMoEV1ForCausalLM": {
        "moe_intermediate_size": [352] * 3,
        "num_experts_per_tok": [3] * 3,
        "num_shared_expert": [1] * 3,
    },
    "LagunaForCausalLM": {
        "layer_types": ["full_attention", *["sliding_attention"] * 3],
        "num_attention_heads_per_layer": [6, 8, 8, 8],
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 500000.0,
                "partial_rotary_factor": 0.5,
                "factor": 4.0,
                "original_max_position_embeddings": 256,
                "attention_factor": 1.0,
                "beta_fast": 64.0,
                "beta_slow": 1.0,
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 1.0,
            },
        },
    },
    "Llama4ForCausalLM": {"attention_chunk_size": 8192, "floor_scale": 8192},
    "MambaForCausalLM": {"intermediate_size": 2 * BASE["hidden_size"]},
    "MellumForCausalLM": {"layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    "Ministral3ForCausalLM": {
        "rope_parameters": {**MINISTRAL, "mscale": 1.0, "mscale_all_dim": 1.0},
        "sliding_window": None,
    },
    "MistralForCausalLM": {"sliding_window": None},
    "MixtralForCausalLM": {"sliding_window": None},
    "NemotronHForCausalLM": {  # all experts or none
        "layers_block_type": [
            "linear_attention",
            "full_attention",
            "moe",
            "linear_attention",
            "moe",
        ]
    },
    "PhiForCausalLM": {"intermediate_size": 768, "num_key_value_heads": 6},
    "PhiMoEForCausalLM": {"rope_parameters": PHI_MOE},
    "Plamo3ForCausalLM": {"sliding_window_pattern": 3},
    "Qwen2ForCausalLM": {"use_sliding_window": False},
    "Qwen3MoeForCausalLM": {"norm_topk_prob": True},
    "Starcoder2ForCausalLM": {"sliding_window": 4096},
    "Step3p5ForCausalLM": {
        "rope_parameters": {
            "full_attention": {**STEP_ROPE, "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 1.0,
            },
        },
    },
}
HYBRID = {"linear_attention": "mamba", "full_attention": "attention"}
# Under their own names transformers reads some configs before the converter does.
UNKNOWN = {"model_type": "as published"}
# What blocks of Llama Nemotron say of a half that they do not have.
WITHOUT = {"n_heads_in_group": None, "replace_with_linear": False, "ffn_mult": None}
Change = Callable[[dict[str, Any]], dict[str, Any]]
# What published configs say, the converter reads and transformers no longer writes.
WRITTEN: dict[str, Change] = {
    "BloomForCausalLM": lambda config: config | {"seq_length": 1024},
    "DeciLMForCausalLM": lambda config: (
        config
        | {
            "block_configs": [
                {half: WITHOUT | said for half, said in block.items()}
                for block in config["block_configs"]
            ]
        }
    ),
    "Dots1ForCausalLM": lambda config: config | {"scoring_func": "sigmoid"},
    "FalconH1ForCausalLM": lambda config: config | {"head_dim": BASE["head_dim"]},
    "GPT2LMHeadModel": lambda config: config | {"n_ctx": 1024},
    "GPTNeoXForCausalLM": lambda config: config | {"rotary_pct": 0.25} | UNKNOWN,
    "GlmForCausalLM": lambda config: config | {"seq_length": 1024},
    "GraniteMoeHybridForCausalLM": lambda config: (
        config | {"layer_types": [HYBRID[kind] for kind in config["layer_types"]]}
    ),
    "GraniteMoeSWAForCausalLM": lambda config: config | {"no_rope_layers": [1, 0, 1]},
    "GraniteSWAForCausalLM": lambda config: config | {"no_rope_layers": [1, 0, 1]},
    "MiMoV2FlashForCausalLM": lambda config: mimo(config) | {"topk_method": "noaux_tc"} | UNKNOWN,
    "Step3p5ForCausalLM": lambda config: (
        step(config) | {"norm_expert_weight": True, "rope_scaling": STEP_ROPE} | UNKNOWN
    ),
}


@dataclass(frozen=True)
class Drafting:
    """What a checkpoint calls a layer that only drafts tokens, {} for the number of layers before
    it; what joins its two inputs, and norms, {} for the layer; the field that counts such."""

    layer: str
    joins: str
    norms: tuple[str, ...]
    field: str


def drafting(norm: str, layer: str = "model.layers.{}") -> Drafting:
    """As most models have it; ``norm``: of its output."""
    norms = tuple(f"{{}}{of}.weight" for of in ("enorm", "hnorm", norm))
    return Drafting(layer, "{}eh_proj.weight", norms, "num_nextn_predict_layers")


# Rows with such a layer, which is left out.
DRAFTING = {
    "Cohere2MoeForCausalLM": drafting("shared_head.norm"),
    "DeepseekV32ForCausalLM": drafting("shared_head.norm"),
    "Glm4MoeForCausalLM": drafting("shared_head.norm"),
    "GlmMoeDsaForCausalLM": drafting("shared_head.norm"),
    "HYV3ForCausalLM": drafting("final_layernorm"),
    "MiMoV2FlashForCausalLM": drafting("final_layernorm", "model.mtp.layers.0"),
    "Step3p5ForCausalLM": drafting("transformer.shared_head.norm"),
    "Qwen3_5ForCausalLM": Drafting(
        "mtp.layers.0",
        "mtp.fc.weight",
        ("mtp.norm.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"),
        "mtp_num_hidden_layers",
    ),
}
# Rows of models that are loaded as another class.
LOADED_AS_OTHERS = {
    "BailingMoeForCausalLM",
    "ChatGLMModel",
    "ExaoneForCausalLM",
    "FalconMambaForCausalLM",
    "InternLM2ForCausalLM",
    "Qwen3NextForCausalLM",
}


def names() -> list[str]:
    """Of the architectures that are read and have a row of their own."""
    known = [*architectures.KNOWN.values(), *architectures.MIXTURES.values()]
    classes = {name for kind in known for name in (kind.class_name, *kind.other_classes)}
    classes |= LOADED_AS_OTHERS
    return sorted(classes & {spec.name for spec in text.SPECS} | {spec.name for spec in OTHERS})


def converted(
    checkpoint: Path, kind: str, said: str = "", part: str = "text"
) -> tuple[Path, dict[str, Any]]:
    """A GGUF file beside the checkpoint, and the options that engines need for it.  said: the kind
    of tokenizer that the converter insists on; part: of ``llama_cpp.convert``."""
    # A vocabulary of the model's size: some converters drop the rows of more.
    missing = BASE["vocab_size"] - 256 - len(SPECIAL) - len(ANSWERS)
    write_tokenizer(checkpoint, [*ANSWERS, *(f"<{number}>" for number in range(missing))])
    file = checkpoint / f"{kind}.gguf"
    tokenizer = checkpoint / "tokenizer.json"
    own = tokenizer.read_text()
    if said:
        tokenizer.write_text(own.replace('"type": "BPE"', f'"type": "{said}"'))
    llama_cpp.convert(checkpoint, file, kind, part)
    tokenizer.write_text(own)
    os.environ["XDG_CACHE_HOME"] = str(checkpoint / "cache")
    return file, {"tokenizer": str(checkpoint)}


def add_drafting(checkpoint: Path, drafting: Drafting) -> None:
    """A layer that only drafts tokens behind the model's own, of the numbers of one of them."""
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    weights = load_file(checkpoint / "model.safetensors")
    layer = f"{drafting.layer.format(config['num_hidden_layers'])}."
    attends = max(name for name in weights if name.endswith("self_attn.o_proj.weight"))
    copied = attends.removesuffix("self_attn.o_proj.weight")
    for name in [name for name in weights if name.startswith(copied)]:
        weights[layer + name.removeprefix(copied)] = weights[name].clone()
    width = config["hidden_size"]
    for name in drafting.norms:
        weights[name.format(layer)] = torch.rand(width)
    weights[drafting.joins.format(layer)] = torch.rand(width, 2 * width)
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    path.write_text(json.dumps(config | {drafting.field: 1}))


def granted(spec: Spec) -> Spec:
    """A model that the converter can write."""
    own = {**spec.config, **GRANTED.get(spec.name, {})}
    return replace(spec, config=own, published_config=WRITTEN.get(spec.name, dict))


def examine(spec: Spec, folder: Path) -> Outcome:
    """Runs in a process of its own."""
    spec = granted(spec)
    drafts = DRAFTING.get(spec.name)
    part = "drafting" if drafts else "text"

    def made() -> tuple[Path, dict[str, Any]]:
        if drafts:
            add_drafting(folder, drafts)
        return converted(folder, "F32", part=part)

    outcome = text.examine(spec, folder, made)
    if outcome.state != judge.RIGHT:
        return outcome
    if faults := damaged(folder / "F32.gguf"):
        return Outcome(judge.WRONG, "; ".join(faults))
    judged = rounding.Judge(spec, folder)
    file, options = converted(folder, "Q8_0", part=part)
    _, fault = judged.examine(file, {**text.CHUNKED, "dtype": "bfloat16", **options}, Q8_0)
    return Outcome(judge.WRONG, f"Q8_0: {fault}") if fault else outcome


def damaged(path: Path) -> list[str]:
    """What else than one sentence a file comes to with a field of another kind or a tensor less."""
    faults = []
    name = GgufFile(path).metadata["general.architecture"]
    for key in [key for key in GgufFile(path).metadata if key.startswith(f"{name}.")]:
        for value in OTHERS:
            file = GgufFile(path)
            file.metadata[key] = value
            faults += _other_than_a_sentence(file, f"{key} = {value!r}")
    for missing in GgufFile(path).tensors:
        file = GgufFile(path)
        del file.tensors[missing]
        faults += _other_than_a_sentence(file, f"without {missing}")
    return faults


def _other_than_a_sentence(file: GgufFile, what: str) -> list[str]:
    try:
        Checkpoint(file)
    except ConfigError as error:
        return [f"{what}: {error}"] if "\n" in str(error) else []
    except Exception as error:
        return [f"{what}: {type(error).__name__}: {error}"]
    return []


def report(specs: Iterable[Any], examine: Callable[[Any, Path], Outcome]) -> int:
    """One line for each; 1 if one of them is not right."""
    llama_cpp.sources()
    run.prepare()
    faulty = False
    for spec in specs:
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = run.forked(examine, spec, Path(folder), seconds=SECONDS)
            except run.Failed as failed:
                outcome = Outcome(judge.WRONG, str(failed), where=failed.where)
        faulty = faulty or outcome.state != judge.RIGHT
        print(
            json.dumps([spec.name, outcome.state, outcome.note, outcome.where[-1500:]]), flush=True
        )
    return int(faulty)


def main() -> int:
    """Of all that are known if none is named."""
    specs = {spec.name: spec for spec in (*text.SPECS, *OTHERS)}
    return report((specs[name] for name in sys.argv[1:] or names()), examine)


if __name__ == "__main__":
    sys.exit(main())
