"""What the model needs to know, measured on this machine in two minutes.

Kernels are timed alone, with one thread and with all; what lies around them comes from a toy model
with the demo model's depth and next to no width.  The demo model itself is measured only to be
compared with what the model says of it.
"""

from __future__ import annotations

import datetime
import functools
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.compare.machine import read_machine
from benchmarks.compare.peers import RUNNERS
from benchmarks.compare.process import Runner, clean_environ
from benchmarks.limits import best_seconds, fma_peak, read_bandwidth
from benchmarks.scaling.model import MODELS, Decoder
from cpu_backend import ops

ROTATED_BYTES = 192 << 20
PROMPT_ROWS = 512
LOOPS = 300
ENGINE_TIMEOUT_S = 90
COLLECTIVES = Path(__file__).parents[1] / "bench_collectives.py"
TOY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 30,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def probe(store: Path, say: Callable[[str], None]) -> None:
    """Measure what ``store`` does not have yet, in bytes, operations and seconds.

    Each figure is written as soon as it is there, so a stopped measurement goes on.
    """
    machine = read_machine()
    if machine.threads < 2:
        raise SystemExit("barriers and sums over ranks need two cores: this machine has one.")
    found: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {}
    found.setdefault("cpu", machine.model)
    found.setdefault("cores", machine.threads)
    found.setdefault("date", datetime.date.today().isoformat())
    found.setdefault("toy_layers", TOY["num_hidden_layers"])

    def keep(group: str, name: str, measure: Callable[[], Any]) -> None:
        of_group = found.setdefault(group, {})
        if name not in of_group:
            of_group[name] = measure()
            say(f"{group}, {name}: {of_group[name]}")
            store.write_text(json.dumps(found, indent=1) + "\n")

    for count in (1, machine.threads):
        keep("kernels", str(count), functools.partial(in_own_process, kernels, count))
    keep("ranks", "all_reduce", all_reduce)
    whole = {f"{machine.threads} cores": (1, machine.cpus), "tp 2": (2, machine.cpus)}
    layouts = {"toy": whole, "demo": {"1 cores": (1, machine.cpus[:1])} | whole}
    with tempfile.TemporaryDirectory() as folder:
        paths = {"toy": Path(folder, "toy"), "demo": Path(folder, "demo")}
        paths["toy"].mkdir()
        (paths["toy"] / "config.json").write_text(json.dumps(TOY))
        even_demo(paths["demo"])
        for group, path in paths.items():
            for name, (ranks, cpus) in layouts[group].items():
                work = functools.partial(engine, path, ranks, cpus, group == "toy")
                keep(group, name, work)


def in_own_process(measure: Callable[[int], Any], threads: int) -> Any:
    """Who binds threads is bound itself, and so is everything that it starts."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure, threads).result()


def even_demo(target: Path) -> None:
    """The demo model's sizes with heads that two ranks can share: 12 and 4 instead of 9 and 3."""
    from cpu_backend.demo_model import default_dir

    config = json.loads((default_dir() / "config.json").read_text())
    target.mkdir()
    config |= {"num_attention_heads": 12, "num_key_value_heads": 4}
    (target / "config.json").write_text(json.dumps(config))


# ---- kernels -------------------------------------------------------------------------------------


def kernels(threads: int) -> dict[str, Any]:
    """Limits of so many threads, what linear layers reach of them, and a loop's own time."""
    ops.load()
    ops.bind_threads(read_machine().cpus[:threads])
    linears = {name: linear(MODELS[name]) for name in ("SmolLM2-135M", "Llama-3.2-1B")}
    return {
        "read_bytes_per_s": read_bandwidth(15),
        "flop_per_s": fma_peak(15),
        "linear": linears,
        "loop": loop_seconds(),
    }


def linear(model: Decoder) -> dict[str, float]:
    """Rates of one layer's four linears in bf16, weights cold: one row, then a prompt's rows."""
    shapes = model.linears()
    layer_bytes = 2 * sum(rows * columns for rows, columns in shapes)
    copies = max(1, -(-ROTATED_BYTES // layer_bytes))
    layers = [
        [ops.PackedLinear(torch.ones(shape, dtype=torch.bfloat16)) for shape in shapes]
        for _ in range(copies)
    ]

    def seconds(rows: int, used: int) -> float:
        inputs = [torch.ones(rows, columns, dtype=torch.bfloat16) for _, columns in shapes]

        def work() -> None:
            for packed in layers[:used]:
                for weight, x in zip(packed, inputs, strict=True):
                    weight(x)

        work()
        return best_seconds(work, 12) / used

    rate, flop = layer_bytes / seconds(1, copies), PROMPT_ROWS * layer_bytes
    return {"read_bytes_per_s": rate, "flop_per_s": flop / seconds(PROMPT_ROWS, 1)}


def loop_seconds() -> dict[str, float]:
    """A loop within a replayed step: one that a thread runs alone, and one that threads share.

    Between shared loops all threads meet, so with two threads what is more than half of the time
    with one is the barrier.
    """
    x = torch.ones(1, 64, dtype=torch.bfloat16)
    weight, out = torch.ones(64, dtype=torch.bfloat16), torch.empty_like(x)
    shared = ops.PackedLinear(torch.zeros(128, 64, dtype=torch.bfloat16))

    def each(work: Callable[[], object]) -> float:
        recording = ops.StepRecording([])
        with recording:
            for _ in range(LOOPS):
                work()
            recording.output = out
        if recording.error:
            raise RuntimeError(recording.error)
        return best_seconds(lambda: recording.replay([]), 200) / LOOPS

    return {
        "serial_s": each(lambda: torch.ops._C.rms_norm(out, x, weight, 1e-5)),
        "shared_s": each(lambda: shared(x)),
    }


# ---- ranks and engines ---------------------------------------------------------------------------


def all_reduce() -> list[dict[str, float]]:
    """Rows of bench_collectives.py: two ranks of one thread."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rows.json")
        command = [sys.executable, str(COLLECTIVES), "--json", str(out)]
        subprocess.run(command, check=True, capture_output=True, timeout=ENGINE_TIMEOUT_S)
        rows: list[dict[str, float]] = json.loads(out.read_text())["rows"]
    return [{key: row[key] for key in ("bytes", "ours_us", "gloo_us", "copies_us")} for row in rows]


def engine(model: Path, ranks: int, cpus: tuple[int, ...], is_toy: bool) -> dict[str, float]:
    """Decode tokens/s, prompt tokens/s and the other programs' cores meanwhile."""
    script = RUNNERS / "vllm_engine.py"
    each = len(cpus) // ranks
    lists = [cpus[rank * each : (rank + 1) * each] for rank in range(ranks)]
    binding = "|".join(",".join(map(str, of_rank)) for of_rank in lists)
    added = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": binding}
    settings = {
        "model": str(model),
        "dtype": "bfloat16",
        "context": 2048,
        "vocab_size": TOY["vocab_size"],
        "engine": {"load_format": "dummy", "tensor_parallel_size": ranks},
    }
    prompt = 16 if is_toy else 1024
    with tempfile.TemporaryDirectory() as folder:
        environ = clean_environ(added, keep=("PYTHONPATH",))
        log = Path(folder, "log")
        with Runner(Path(sys.executable), script, environ, log, ENGINE_TIMEOUT_S) as runner:
            runner.ask(settings)
            runner.ask({"kind": "decode", "sizes": [32, 16], "repeats": 1})  # records the step
            decode = runner.ask({"kind": "decode", "sizes": [32, 96], "repeats": 4})
            time.sleep(0.2)
            prompts = runner.ask({"kind": "prompt", "sizes": [prompt], "repeats": 3})
    return {
        "decode_tokens_per_s": max(decode["values"]),
        "decode_median": statistics.median(decode["values"]),
        "prompt_tokens_per_s": max(prompts["values"]),
        "prompt_tokens": prompt,
        "other_cores": max(decode["other_cores"], prompts["other_cores"]),
    }
