"""Prompts and decoding with multi-head latent attention at long contexts, beside other engines.

``python -m benchmarks.latent [SHAPE] [--latents auto fp8 ...] [--llama-cpp BF16]
[--beside NAME=PYTHON] [--context 8192] [--layers 2] [--rounds 3] [--wall]``,
``python -m benchmarks.latent GLM-4.7-Flash --check``

The model has the shape of DeepSeek-V2-Lite, or of GLM-4.7-Flash, cut to its first layers, of which
one has no experts, and to a vocabulary of 32,000, with random weights.  It runs on this project
with each kind of latent cache, and with the same weights on the vLLM of each interpreter that
``--beside`` names and on llama.cpp, in a GGUF file of each type that ``--llama-cpp`` names; that
knows the first shape by its 27 layers, so it can be given the second only.  All engines are alive
at once, each in one process with one thread, and what counts is CPU time, which neighbours disturb
least; ``--wall`` takes every core and the clock instead.

Reported: tokens/s of prompts of a quarter of the context and of all of it, and the share of the
machine's fp32 multiply-adds that this is (products of bf16 may exceed it), with attention counted
in the expanded form, which needs the fewest; milliseconds of a decode step of one request and of
four, each after a context of its own that is in the engine's memory, and the bytes of weights and
latents in it, each latent once and in the type of the cache, as a share of the read bandwidth
probed between the turns.

``--check`` measures nothing: it compares greedy tokens of llama.cpp, all in fp32, with those here,
and ends with exit code 1 where one differs.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare.process import Runner
from benchmarks.random_models import weights_of, write_checkpoint
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

REQUESTS = (1, 4)
PROMPTS = 2  # of each turn, which do not take the place of what steps come after
STEPS = 32
CHUNK = 2048  # tokens of a step

COMMON: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "n_routed_experts": 64,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
SHAPES: dict[str, dict[str, Any]] = {
    "DeepSeek-V2-Lite": {
        **COMMON,
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "moe_layer_freq": 1,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "max_position_embeddings": 163840,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
    },
    "GLM-4.7-Flash": {
        **COMMON,
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite",
        "intermediate_size": 10240,
        "moe_intermediate_size": 1536,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.8,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "max_position_embeddings": 202752,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "rms_norm_eps": 1e-5,
    },
}


@dataclass(frozen=True)
class Engine:
    """latent_bytes: of a token in all layers."""

    name: str
    runner: Runner
    latent_bytes: int


def start_engines(stack: ExitStack, place: Place, options: argparse.Namespace) -> list[Engine]:
    """All that start; of the others one line is printed."""
    host = functools.partial(start_host, stack, OURS, place)
    kinds = {f"here {kind}": kind for kind in options.latents}
    starts: dict[str, Start] = {
        **{name: functools.partial(host, kv_cache_dtype=kind) for name, kind in kinds.items()},
        **other_engines(stack, place, options, sequences=max(REQUESTS) + PROMPTS),
    }
    numbers = options.layers * (COMMON["kv_lora_rank"] + COMMON["qk_rope_head_dim"])
    return [
        Engine(name, runner, numbers * (2 if kinds.get(name, "auto") == "auto" else 1))
        for name, runner in start_all(starts, place.checkpoint.parent).items()
    ]


def measure(runner: Runner, context: int) -> dict[str, float]:
    """Seconds of a step by number of requests; tokens/s of prompts."""

    def ask(kind: str, *sizes: int) -> float:
        [value] = runner.ask({"kind": kind, "sizes": sizes, "repeats": 1})["values"]
        return float(value)

    return {
        **{f"step:{n}": ask("step_after_known", n, context, STEPS + 1) for n in REQUESTS},
        **{f"prompt:{tokens}": ask("prompt", tokens) for tokens in prompts(context)},
    }


def prompts(context: int) -> tuple[int, int]:
    return context // 4, context


def report(
    engines: list[Engine],
    config: dict[str, Any],
    context: int,
    values: dict[tuple[str, str], list[float]],
    bandwidth: float,
    peak: float,
) -> None:
    """A line for each engine and work: the median, its range, its share; beside the first one."""
    weights = weights_of(config)
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    pair = sum(config[f"{part}_head_dim"] for part in ("qk_nope", "qk_rope", "v")) * heads * layers
    print(f"{bandwidth / 1e9:.1f} GB/s read, {peak / 1e9:.0f} GFLOP/s in fp32")
    for engine in engines:
        for tokens in prompts(context):
            speeds = values[engine.name, f"prompt:{tokens}"]
            operations = 2 * (weights.multiplied() + pair * (tokens + 1) / 2)
            share = statistics.median(speeds) * operations / peak
            ratio = beside(engines[0], speeds, values, f"prompt:{tokens}", more_is_better=True)
            print(
                f"  {engine.name:16} prompt of {tokens}: {summary(speeds, '.0f')} tokens/s, "
                f"{share:.0%} of fp32{ratio}"
            )
        for requests in REQUESTS:
            steps = values[engine.name, f"step:{requests}"]
            moved = 2 * weights.read(requests) + requests * engine.latent_bytes * context
            share = moved / statistics.median(steps) / bandwidth
            ratio = beside(engines[0], steps, values, f"step:{requests}", more_is_better=False)
            print(
                f"  {engine.name:16} decode of {requests} at {context}: "
                f"{summary([1e3 * s for s in steps], '.2f')} ms, {share:.0%} of bandwidth{ratio}",
                flush=True,
            )


def beside(
    first: Engine,
    found: list[float],
    values: dict[tuple[str, str], list[float]],
    work: str,
    *,
    more_is_better: bool,
) -> str:
    """How many times as fast the first engine is, turn by turn."""
    ours = values[first.name, work]
    if found is ours:
        return ""
    return f"; {first.name} {times_as_fast(ours, found, more_is_better=more_is_better)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.latent",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shape", nargs="?", choices=SHAPES, default="DeepSeek-V2-Lite")
    parser.add_argument("--latents", nargs="+", default=["auto"], help="as --kv-cache-dtype")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=2)
    add_engine_options(parser)
    options = parser.parse_args()
    config = {**SHAPES[options.shape], "num_hidden_layers": options.layers}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        checkpoint = write_checkpoint(config, folder / "checkpoint")
        context = options.context + 2 * STEPS
        place = Place(checkpoint, context, max(REQUESTS), CHUNK, options.wall)
        if options.check:
            sys.exit(not gives_same_tokens(options.shape, options, place))
        engines = start_engines(stack, place, options)
        probe = start_probe(stack, folder / "probe.log", wall=options.wall)
        values, limits = take_turns(
            engines, lambda engine: measure(engine.runner, options.context), probe, options.rounds
        )
        bandwidth, peak = limits["bytes_per_s"], limits["flop_per_s"]
        report(engines, config, options.context, values, bandwidth, peak)


if __name__ == "__main__":
    main()
