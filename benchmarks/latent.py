"""Prompts and decoding with multi-head latent attention at long contexts, beside other engines.

``python -m benchmarks.latent [--cache auto fp8 ...] [--beside NAME=PYTHON] [--context 8192]
[--layers 2] [--rounds 3] [--wall]``

The model has the shape of DeepSeek-V2-Lite, cut to its first layers, of which one has no experts,
and to a vocabulary of 32,000, with random weights.  It runs on this project with each kind of
latent cache, and on the vLLM of each interpreter that ``--beside`` names.  All engines are alive at
once, each in one process with one thread, and what counts is CPU time, which neighbours disturb
least; ``--wall`` takes every core and the clock instead.

Reported: tokens/s of prompts of a quarter of the context and of all of it, and the share of the
machine's fp32 multiply-adds that this is (products of bf16 may exceed it), with attention counted
in the expanded form, which needs the fewest; milliseconds of a decode step of one request and of
four, each after a context of its own, and the bytes of weights and latents in it, each latent once
and in the type of the cache, as a share of the read bandwidth probed between the turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare.process import Runner, RunnerError
from benchmarks.recurrent import weights_of
from benchmarks.turns import OURS, named_python, start_probe, start_vllm, summary, take_turns

REQUESTS = (1, 4)
STEPS = 32
CHUNK = 2048  # tokens of a step

CONFIG = {  # of DeepSeek-V2-Lite
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True)
class Engine:
    """latent_bytes: of a token in all layers."""

    name: str
    runner: Runner
    latent_bytes: int


def start(
    stack: ExitStack, folder: Path, name: str, python: Path, cache: str, options: argparse.Namespace
) -> Runner:
    """An engine in one process; RunnerError with its sentence where it does not start."""
    runner = start_vllm(stack, python, folder / f"{name}.log", wall=options.wall)
    runner.ask(
        {
            "model": str(folder / "checkpoint"),
            "dtype": "bfloat16",
            "context": options.context + 2 * STEPS,
            "vocab_size": CONFIG["vocab_size"],
            "cpu_time": not options.wall,
            "engine": {
                "load_format": "dummy",
                "max_num_seqs": max(REQUESTS),
                "max_num_batched_tokens": CHUNK,
                "enforce_eager": python != OURS,
                "kv_cache_dtype": cache,
            },
        }
    )
    return runner


def start_engines(
    stack: ExitStack, folder: Path, config: dict[str, Any], options: argparse.Namespace
) -> list[Engine]:
    """All that start; of the others one line is printed."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text(json.dumps(config))
    channels = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    numbers = config["num_hidden_layers"] * channels
    engines: list[Engine] = []
    for name, python, cache in (
        *((f"here {cache}", OURS, cache) for cache in options.cache),
        *((name, python, "auto") for name, python in options.beside),
    ):
        try:
            runner = start(stack, folder, name, python, cache, options)
        except RunnerError as error:
            print(f"{name}: {error}", flush=True)
            continue
        engines.append(Engine(name, runner, numbers * (2 if cache == "auto" else 1)))
    return engines


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
    pairs = zip(ours, found, strict=True)
    ratios = [here / there if more_is_better else there / here for here, there in pairs]
    return f"; {first.name} {summary(ratios, '.2f')} times as fast"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.latent",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cache", nargs="+", default=["auto"], help="as --kv-cache-dtype")
    parser.add_argument(
        "--beside", action="append", default=[], type=named_python, metavar="NAME=PYTHON"
    )
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wall", action="store_true", help="all cores and the clock")
    options = parser.parse_args()
    config = {**CONFIG, "num_hidden_layers": options.layers}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        engines = start_engines(stack, folder, config, options)
        probe = start_probe(stack, folder / "probe.log", wall=options.wall)
        values, limits = take_turns(
            engines, lambda engine: measure(engine.runner, options.context), probe, options.rounds
        )
        bandwidth, peak = limits["bytes_per_s"], limits["flop_per_s"]
        report(engines, config, options.context, values, bandwidth, peak)


if __name__ == "__main__":
    main()
