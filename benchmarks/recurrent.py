"""Prompts and decoding of models with recurrent states, beside dense ones and other engines.

``python -m benchmarks.recurrent [MODEL ...] [--llama-cpp BF16] [--beside NAME=PYTHON] [--rounds 3]
[--wall]``, ``python -m benchmarks.recurrent --check [MODEL ...]``

Each model has the shape of a published one and random weights.  It is measured in turns with a
Llama of the same width, depth and number of weights on this project, and with the same weights on
the vLLM of each interpreter that ``--beside`` names and on llama.cpp, in a GGUF file of each type
that ``--llama-cpp`` names (its environment is made first, as by ``benchmarks.compare``).  All
engines are alive at once, each in one process with one thread, and what counts is CPU time, which
neighbours disturb least; ``--wall`` takes every core and the clock instead.

Reported: tokens/s of a prompt of 1,024 tokens, and how many weights are multiplied per second as a
share of what the Llama reaches; milliseconds of a decode step of one request and of 16, and the
bytes of weights and states in it as a share of the read bandwidth probed between the turns; how
many times as fast this project is as each other engine, by rounds.  Attention's keys and values are
not counted; of a mixture, the experts that a step is expected to read.

``--check`` measures nothing: it compares greedy tokens of llama.cpp, all in fp32, with those here,
and ends with exit code 1 where one differs.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.compare.process import Runner
from benchmarks.random_models import Weights, weights_of, write_checkpoint
from benchmarks.text_engines import (
    Place,
    Start,
    add_engine_options,
    gives_same_tokens,
    other_engines,
    start_all,
    start_host,
)
from benchmarks.turns import OURS, start_probe, summary, take_turns, times_as_fast

PROMPT = 1024
STEPS = 32
REQUESTS = (1, 16)

GATED_DELTA = {  # Qwen3.5-0.8B, from memory: its config is not in transformers
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
GRANITE = {  # Granite-4.0-h-tiny, from memory, 6 of 40 layers, one of them attention
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "vocab_size": 100352,
    "hidden_size": 1536,
    "intermediate_size": 512,
    "shared_intermediate_size": 1024,
    "num_local_experts": 64,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 6,
    "layer_types": ["linear_attention"] * 5 + ["full_attention"],
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "mamba_n_heads": 48,
    "mamba_d_head": 64,
    "mamba_n_groups": 1,
    "mamba_d_state": 128,
    "mamba_d_conv": 4,
    "rms_norm_eps": 1e-5,
    "attention_multiplier": 0.0078125,
    "embedding_multiplier": 12,
    "logits_scaling": 6,
    "residual_multiplier": 0.22,
    "position_embedding_type": "nope",
    "initializer_range": 0.15,  # with the usual 0.02 every token is followed by itself
}
NEMOTRON = {  # Nemotron-3-Nano-30B-A3B, from memory, 5 of 52 layers
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "vocab_size": 131072,
    "hidden_size": 2688,
    "num_hidden_layers": 5,
    "layers_block_type": ["linear_attention", "moe", "linear_attention", "full_attention", "moe"],
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 3712,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
}
MAMBA2 = {  # mamba2-130m, from memory
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "vocab_size": 50288,
    "hidden_size": 768,
    "num_hidden_layers": 24,
    "num_heads": 24,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 1,
    "conv_kernel": 4,
    "layer_norm_epsilon": 1e-5,
}
MAMBA = {  # mamba-130m, from memory
    "architectures": ["MambaForCausalLM"],
    "model_type": "mamba",
    "vocab_size": 50280,
    "hidden_size": 768,
    "intermediate_size": 1536,
    "num_hidden_layers": 24,
    "state_size": 16,
    "time_step_rank": 48,
    "conv_kernel": 4,
    "layer_norm_epsilon": 1e-5,
}
SHORT_CONV = {  # LFM2-350M, from memory; the host takes two thirds of the intermediate size
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "vocab_size": 65536,
    "hidden_size": 1024,
    "intermediate_size": 6656,
    "block_multiple_of": 256,
    "conv_L_cache": 3,
    "conv_dim": 1024,
    "block_dim": 1024,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "layer_types": [
        "full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)
    ],
    "norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
}


@dataclass(frozen=True)
class Model:
    """config: of the checkpoint; state_bytes: of one request, recurrent states in fp32 and those of
    convolutions in bf16."""

    config: dict[str, Any]
    state_bytes: int


MODELS = {
    "Qwen3.5-0.8B": Model(GATED_DELTA, 18 * (16 * 128 * 128 * 4 + 3 * 6144 * 2)),
    "Granite-4.0-h-tiny-6-layers": Model(GRANITE, 5 * (48 * 64 * 128 * 4 + 3 * 3328 * 2)),
    "Nemotron-3-Nano-5-layers": Model(NEMOTRON, 2 * (64 * 64 * 128 * 4 + 3 * 6144 * 2)),
    "mamba2-130m": Model(MAMBA2, 24 * (24 * 64 * 128 * 4 + 3 * 1792 * 2)),
    "mamba-130m": Model(MAMBA, 24 * (1536 * 16 * 4 + 3 * 1536 * 2)),
    "LFM2-350M": Model(SHORT_CONV, 10 * 2 * 1024 * 2),
}


def dense_twin(config: dict[str, Any], weights: Weights) -> dict[str, Any]:
    """A Llama of the same width, depth and number of multiplied weights."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    mlp = weights.multiplied() / layers - 4 * hidden * hidden
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config["vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": max(64, round(mlp / (3 * hidden) / 64) * 64),
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 64,
        "head_dim": 64,
        "max_position_embeddings": 2 * PROMPT,
    }


@dataclass(frozen=True)
class Engine:
    name: str
    runner: Runner
    weights: Weights
    state_bytes: int


def full_config(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "max_position_embeddings": 2 * PROMPT,
        **config,
    }


def checkpoint_of(name: str, folder: Path) -> Path:
    """One of the model, with random weights, written to the folder."""
    return write_checkpoint(full_config(MODELS[name].config), folder)


def place(name: str, options: argparse.Namespace, folder: Path) -> Place:
    """Of engines with the model, below the folder."""
    checkpoint = checkpoint_of(name, folder / "checkpoint")
    return Place(checkpoint, 2 * PROMPT, max(REQUESTS), 2 * PROMPT, options.wall)


def compare(name: str, options: argparse.Namespace, folder: Path) -> None:
    """Measure one model and print its lines."""
    model = MODELS[name]
    weights = weights_of(model.config)
    twin = dense_twin(model.config, weights)
    dense = folder / "dense"
    dense.mkdir()
    (dense / "config.json").write_text(json.dumps(full_config(twin)))
    random = place(name, options, folder)
    with ExitStack() as stack:
        starts: dict[str, Start] = {
            "here": functools.partial(start_host, stack, OURS, random),
            "dense": functools.partial(
                start_host, stack, OURS, replace(random, checkpoint=dense), load_format="dummy"
            ),
            **other_engines(stack, random, options),
        }
        engines = [
            Engine(label, runner, weights_of(twin), 0)
            if label == "dense"
            else Engine(label, runner, weights, model.state_bytes)
            for label, runner in start_all(starts, folder, f"{name}, ").items()
        ]
        probe = start_probe(stack, folder / "probe.log", wall=options.wall)
        values, limits = take_turns(
            engines, lambda engine: measure(engine.runner), probe, options.rounds, f"{name}, "
        )
    report(name, engines, values, limits["bytes_per_s"])


def measure(runner: Runner) -> dict[str, float]:
    """Tokens/s of a prompt; seconds of a step by number of requests."""

    def ask(kind: str, *sizes: int) -> float:
        [value] = runner.ask({"kind": kind, "sizes": sizes, "repeats": 1})["values"]
        return float(value)

    ask("first", STEPS)  # as before steps
    found = {"prompt": ask("prompt", PROMPT)}
    for requests in REQUESTS:
        # llama.cpp makes room for another number of requests when they come: not in the time.
        ask("batch", requests, STEPS, 1)
        found[f"step:{requests}"] = ask("step", requests, STEPS, STEPS + 1)
    return found


def report(
    name: str, engines: list[Engine], values: dict[tuple[str, str], list[float]], bandwidth: float
) -> None:
    """One line for each engine and work: the median, its range, and its share."""
    print(f"{name}: {bandwidth / 1e9:.1f} GB/s read")
    for engine in engines:
        speeds = values[engine.name, "prompt"]
        line = f"  {engine.name:14} prompt {summary(speeds, '.0f')} tokens/s"
        if dense := [other for other in engines if other.name == "dense"]:
            products = engine.weights.multiplied() / dense[0].weights.multiplied()
            ratios = [
                here / there * products
                for here, there in zip(speeds, values["dense", "prompt"], strict=True)
            ]
            line += f", {summary(ratios, '.0%')} of dense products"
        print(line + beside(engine.name, values, "prompt"))
        for requests in REQUESTS:
            steps = values[engine.name, f"step:{requests}"]
            moved = 2 * engine.weights.read(requests) + 2 * requests * engine.state_bytes
            share = moved / statistics.median(steps) / bandwidth
            print(
                f"  {engine.name:14} decode of {requests:2}: "
                f"{summary([1e3 * s for s in steps], '.2f')} ms, {share:.0%} of bandwidth"
                f"{beside(engine.name, values, f'step:{requests}')}",
                flush=True,
            )


def beside(engine: str, values: dict[tuple[str, str], list[float]], work: str) -> str:
    """How many times as fast this project is with the same model; nothing to say of its own."""
    if engine in ("here", "dense") or ("here", work) not in values:
        return ""
    here, there = values["here", work], values[engine, work]
    return f", here {times_as_fast(here, there, more_is_better=work == 'prompt')}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recurrent",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    add_engine_options(parser)
    options = parser.parse_args()
    if unknown := set(options.models) - set(MODELS):
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(MODELS)}")
    is_same = True
    for name in options.models or MODELS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            if options.check:
                is_same &= gives_same_tokens(name, options, place(name, options, folder))
            else:
                compare(name, options, folder)
    sys.exit(not is_same)


if __name__ == "__main__":
    main()
