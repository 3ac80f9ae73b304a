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
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare.environments import Environments, SetupError, run_step
from benchmarks.compare.models import CONVERT
from benchmarks.compare.process import Runner, RunnerError
from benchmarks.turns import (
    OURS,
    add_options,
    named_python,
    start_probe,
    start_runner,
    start_vllm,
    summary,
    take_turns,
    threads,
)
from tools import llama_cpp

PROMPT = 1024
STEPS = 32
REQUESTS = (1, 16)
CHECKED_PROMPTS = (5, 100, 700)  # the last is more than llama.cpp takes at once
CHECKED_TOKENS = 32

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


@dataclass(frozen=True)
class Weights:
    """Numbers of them: of linear layers, of the experts of all mixtures, and of the output."""

    linear: int
    experts: int
    head: int
    chosen: float  # of the experts, by one token

    def multiplied(self) -> float:
        """By one token of a prompt, which needs no logits."""
        return self.linear + self.chosen * self.experts

    def read(self, tokens: int) -> float:
        """In a step of so many tokens, which choose their experts by chance."""
        return self.linear + (1 - (1 - self.chosen) ** tokens) * self.experts + self.head


def weights_of(config: dict[str, Any]) -> Weights:
    """Counted on the model of ``transformers``, without memory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    made = AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(made)
    experts = sum(
        p.numel() for n, p in model.named_parameters() if p.dim() == 3 and "conv" not in n
    )
    linear = sum(
        module.weight.numel()
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    )
    of = config.get("num_local_experts") or config.get("n_routed_experts") or 1
    chosen = config.get("num_experts_per_tok", 0) / of
    return Weights(linear, experts, made.vocab_size * made.hidden_size, chosen)


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


def write_checkpoint(config: dict[str, Any], folder: Path) -> Path:
    """One with random weights."""
    script, text = str(CONVERT / "random_checkpoint.py"), json.dumps(full_config(config))
    run_step([str(OURS), script, text, str(folder)], folder.with_suffix(".log"))
    return folder


def start_host(
    stack: ExitStack,
    python: Path,
    checkpoint: Path,
    log: Path,
    *,
    wall: bool,
    dtype: str = "bfloat16",
    load_format: str = "auto",
) -> Runner:
    """vLLM with this project or without; RunnerError with its sentence where it does not start."""
    runner = start_vllm(stack, python, log, wall=wall)
    engine = {
        "load_format": load_format,
        "max_num_seqs": max(REQUESTS),
        "max_num_batched_tokens": 2 * PROMPT,
        "enforce_eager": python != OURS,
    }
    runner.ask(settings(checkpoint, checkpoint, wall=wall) | {"dtype": dtype, "engine": engine})
    return runner


def start_llama_cpp(
    stack: ExitStack, python: Path, checkpoint: Path, weights: str, log: Path, *, wall: bool
) -> Runner:
    """llama.cpp with a GGUF file made from the checkpoint; SetupError where it cannot be made."""
    file = checkpoint.with_suffix(f".{weights}.gguf")
    run_step(llama_cpp.command(checkpoint, file, weights), log)
    runner = start_runner(stack, python, "llama_cpp_engine.py", log, {}, wall=wall)
    runner.ask(settings(checkpoint, file, wall=wall) | {"threads": threads(wall=wall)})
    return runner


def settings(checkpoint: Path, model: Path, *, wall: bool) -> dict[str, Any]:
    """Of every runner; model: the file that it reads."""
    return {
        "model": str(model),
        "context": 2 * PROMPT,
        "vocab_size": json.loads((checkpoint / "config.json").read_text())["vocab_size"],
        "cpu_time": not wall,
    }


def compare(name: str, options: argparse.Namespace, folder: Path) -> None:
    """Measure one model and print its lines."""
    model, wall = MODELS[name], options.wall
    weights = weights_of(model.config)
    twin = dense_twin(model.config, weights)
    checkpoint = write_checkpoint(model.config, folder / "checkpoint")
    dense = folder / "dense"
    dense.mkdir()
    (dense / "config.json").write_text(json.dumps(full_config(twin)))
    engines: list[Engine] = []
    with ExitStack() as stack:
        host = functools.partial(start_host, stack, wall=wall)
        starts: dict[str, Callable[[Path], Runner]] = {
            "here": functools.partial(host, OURS, checkpoint),
            "dense": functools.partial(host, OURS, dense, load_format="dummy"),
        }
        for label, python in options.beside:
            starts[label] = functools.partial(host, python, checkpoint)
        for kind in options.llama_cpp:
            started = functools.partial(
                start_llama_cpp, stack, llama_cpp_python(options), checkpoint
            )
            starts[f"llama.cpp {kind}"] = functools.partial(started, kind, wall=wall)
        for label, start in starts.items():
            try:
                runner = start(folder / f"{label}.log")
            except (RunnerError, SetupError) as error:
                print(f"{name}, {label}: {error}", flush=True)
                continue
            counted, states = (weights, model.state_bytes)
            if label == "dense":
                counted, states = (weights_of(twin), 0)
            engines.append(Engine(label, runner, counted, states))
        probe = start_probe(stack, folder / "probe.log", wall=wall)
        values, limits = take_turns(
            engines, lambda engine: measure(engine.runner), probe, options.rounds, f"{name}, "
        )
    report(name, engines, values, limits["bytes_per_s"])


def llama_cpp_python(options: argparse.Namespace) -> Path:
    """Made where it is missing; SetupError where it cannot be."""
    return Environments(options.cache.expanduser(), dict(options.python), print).python("llama-cpp")


def check(name: str, options: argparse.Namespace, folder: Path) -> bool:
    """Whether all greedy tokens are the same, in fp32, one engine after the other."""
    checkpoint = write_checkpoint(MODELS[name].config, folder / "checkpoint")
    vocabulary = MODELS[name].config["vocab_size"]
    prompts = [random.choices(range(vocabulary), k=tokens) for tokens in CHECKED_PROMPTS]

    def answers(start: Callable[[ExitStack], Runner]) -> list[int]:
        with ExitStack() as stack:
            runner = start(stack)
            asked = [{"kind": "greedy", "tokens": p, "outputs": CHECKED_TOKENS} for p in prompts]
            return [token for request in asked for token in runner.ask(request)["tokens"]]

    try:
        here = answers(
            lambda stack: start_host(
                stack, OURS, checkpoint, folder / "here.log", wall=False, dtype="float32"
            )
        )
        log = folder / "there.log"
        there = answers(
            lambda stack: start_llama_cpp(
                stack, llama_cpp_python(options), checkpoint, "F32", log, wall=False
            )
        )
    except (RunnerError, SetupError) as error:
        print(f"{name}: {error}", flush=True)
        return False
    same = sum(a == b for a, b in zip(here, there, strict=True))
    total, different = len(here), len(set(here))
    print(
        f"{name}: llama.cpp gives {same} of {total} tokens as here, {different} different ones",
        flush=True,
    )
    return same == total


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
        print(line + times_as_fast(engine.name, values, "prompt"))
        for requests in REQUESTS:
            steps = values[engine.name, f"step:{requests}"]
            moved = 2 * engine.weights.read(requests) + 2 * requests * engine.state_bytes
            share = moved / statistics.median(steps) / bandwidth
            print(
                f"  {engine.name:14} decode of {requests:2}: "
                f"{summary([1e3 * s for s in steps], '.2f')} ms, {share:.0%} of bandwidth"
                f"{times_as_fast(engine.name, values, f'step:{requests}')}",
                flush=True,
            )


def times_as_fast(engine: str, values: dict[tuple[str, str], list[float]], work: str) -> str:
    """This project as another engine with the same model; nothing to say of its own."""
    if engine in ("here", "dense") or ("here", work) not in values:
        return ""
    pairs = zip(values["here", work], values[engine, work], strict=True)
    ratios = [here / there if work == "prompt" else there / here for here, there in pairs]
    return f", here {summary(ratios, '.2f')} times as fast"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recurrent",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument(
        "--beside", action="append", default=[], type=named_python, metavar="NAME=PYTHON"
    )
    parser.add_argument(
        "--llama-cpp", action="extend", nargs="+", default=[], choices=("BF16", "F16", "F32")
    )
    parser.add_argument("--check", action="store_true", help="compare tokens with llama.cpp")
    add_options(parser)
    options = parser.parse_args()
    if unknown := set(options.models) - set(MODELS):
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(MODELS)}")
    is_same = True
    for name in options.models or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            if options.check:
                is_same &= check(name, options, Path(folder))
            else:
                compare(name, options, Path(folder))
    sys.exit(not is_same)


if __name__ == "__main__":
    main()
