"""``python -m tests.zoo.gguf_files [NAMES]``: models out of GGUF files that llama.cpp's own
converter wrote: in F32 judged as their checkpoints are (``text.py``), in Q8_0 as formats are
(``rounding.py``).  One JSON line per model.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cpu_backend.gguf import architectures
from tests.zoo import judge, rounding, run, text
from tests.zoo.build import BASE, Spec
from tests.zoo.judge import Outcome
from tests.zoo.tokens import SPECIAL, write_tokenizer
from tools import llama_cpp

SECONDS = 900
Q8_0 = 0.006  # of what its rounding costs, relative to a weight's size
# What a GGUF file does not say and llama.cpp takes for granted.
GRANTED: dict[str, dict[str, Any]] = {
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
    "MambaForCausalLM": {"intermediate_size": 2 * BASE["hidden_size"]},
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
    "Qwen2ForCausalLM": {"use_sliding_window": False},
    "Qwen3MoeForCausalLM": {"norm_topk_prob": True},
}

HYBRID = {"linear_attention": "mamba", "full_attention": "attention"}
# What published checkpoints have in config.json and the converter reads.
PUBLISHED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "FalconH1ForCausalLM": lambda config: config | {"head_dim": BASE["head_dim"]},
    "GraniteMoeHybridForCausalLM": lambda config: (
        config | {"layer_types": [HYBRID[kind] for kind in config["layer_types"]]}
    ),
}

# Under another class's name, or by another class: Mamba's, Qwen 3.5's.
SERVED_BY_OTHERS = {"FalconMambaForCausalLM", "Qwen3NextForCausalLM"}


def names() -> list[str]:
    """Of the architectures that are read and have a row of their own."""
    known = [*architectures.KNOWN.values(), *architectures.MIXTURES.values()]
    found = {kind.class_name for kind in known} & {spec.name for spec in text.SPECS}
    return sorted(found | SERVED_BY_OTHERS)


def converted(checkpoint: Path, kind: str) -> tuple[Path, dict[str, Any]]:
    """A GGUF file beside the checkpoint, and the options that engines need for it."""
    # A vocabulary of the model's size: some converters drop the rows of more.
    missing = BASE["vocab_size"] - 256 - len(SPECIAL)
    write_tokenizer(checkpoint, [f"<{number}>" for number in range(missing)])
    file = checkpoint / f"{kind}.gguf"
    llama_cpp.convert(checkpoint, file, kind)
    os.environ["XDG_CACHE_HOME"] = str(checkpoint / "cache")
    return file, {"tokenizer": str(checkpoint)}


def examine(spec: Spec, folder: Path) -> Outcome:
    """Runs in a process of its own."""
    own = {**spec.config, **GRANTED.get(spec.name, {})}
    spec = replace(spec, config=own, published_config=PUBLISHED.get(spec.name, dict))
    outcome = text.examine(spec, folder, lambda: converted(folder, "ALL_F32"))
    if outcome.state != judge.RIGHT:
        return outcome
    judged = rounding.Judge(spec, folder)
    file, options = converted(folder, "MOSTLY_Q8_0")
    _, fault = judged.examine(file, {**text.CHUNKED, "dtype": "bfloat16", **options}, Q8_0)
    return Outcome(judge.WRONG, f"Q8_0: {fault}") if fault else outcome


def main() -> int:
    """Of all that are known if none is named."""
    specs = {spec.name: spec for spec in text.SPECS}
    llama_cpp.sources()
    run.prepare()
    faulty = False
    for name in sys.argv[1:] or names():
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = run.forked(examine, specs[name], Path(folder), seconds=SECONDS)
            except run.Failed as failed:
                outcome = Outcome(judge.WRONG, f"{failed}\n{failed.where}")
        faulty = faulty or outcome.state != judge.RIGHT
        print(json.dumps([name, outcome.state, outcome.note, outcome.where[-1500:]]), flush=True)
    return int(faulty)


if __name__ == "__main__":
    sys.exit(main())
