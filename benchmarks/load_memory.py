"""What loading a model costs in memory: the engine's peak beside the weights that it keeps.

    python -m benchmarks.load_memory {7B-awq,7B-gptq,1B,mixture} [--quantization Q] [--folder DIR]

Writes a checkpoint of the shape with random weights (up to 5 GB, kept only if --folder names a
place for it) and loads it in a process of its own, with engine and model in one process.  Counted
is anonymous memory: pages of the mapped checkpoint are the page cache's, which gives them up.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLE_S = 0.01
GROUP = 128


@dataclass(frozen=True)
class Shape:
    """A Llama, quantized ("awq", "gptq") or in bf16 ("")."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    tied: bool
    scheme: str
    experts: int = 0  # a Qwen 3 mixture with so many in each layer, 8 of them for a token

    def config(self) -> dict[str, Any]:
        """Its config.json."""
        config: dict[str, Any] = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": 4096,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": 1e-05,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "bfloat16",
            "vocab_size": self.vocab,
        }
        if self.experts:
            config |= {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
            config |= {"head_dim": self.hidden // self.heads, "num_experts": self.experts}
            config |= {"moe_intermediate_size": self.intermediate, "num_experts_per_tok": 8}
        if self.scheme:
            method = {"quant_method": self.scheme, "bits": 4, "group_size": GROUP}
            method |= {"zero_point": True, "sym": True, "desc_act": False}
            config["quantization_config"] = method
        return config

    def linears(self) -> dict[str, tuple[int, int]]:
        """(outputs, inputs) of the linear layers of a decoder layer."""
        keys = self.hidden // self.heads * self.kv_heads
        projections = {
            "gate_proj": (self.intermediate, self.hidden),
            "up_proj": (self.intermediate, self.hidden),
            "down_proj": (self.hidden, self.intermediate),
        }
        blocks = [f"mlp.experts.{i}" for i in range(self.experts)] or ["mlp"]
        return {
            "self_attn.q_proj": (self.hidden, self.hidden),
            "self_attn.k_proj": (keys, self.hidden),
            "self_attn.v_proj": (keys, self.hidden),
            "self_attn.o_proj": (self.hidden, self.hidden),
            **{f"{b}.{name}": size for b in blocks for name, size in projections.items()},
            **({"mlp.gate": (self.experts, self.hidden)} if self.experts else {}),
        }


SHAPES = {
    "7B-awq": Shape(4096, 11008, 32, 32, 32, 32000, tied=False, scheme="awq"),
    "7B-gptq": Shape(4096, 11008, 32, 32, 32, 32000, tied=False, scheme="gptq"),
    "1B": Shape(2048, 8192, 16, 32, 8, 128256, tied=True, scheme=""),
    # Four of the 48 layers of Qwen3-30B-A3B.
    "mixture": Shape(2048, 768, 4, 32, 4, 32000, tied=False, scheme="", experts=128),
}


def files_of(shape: Shape) -> Iterator[dict[str, Any]]:
    """Tensors of the checkpoint, one file after the other."""
    import torch

    def words(*size: int) -> torch.Tensor:
        return torch.randint(-(2**31), 2**31, size, dtype=torch.int32)

    def numbers(*size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.bfloat16).normal_(std=0.02)

    def linear(outputs: int, inputs: int) -> dict[str, torch.Tensor]:
        if not shape.scheme:
            return {"weight": numbers(outputs, inputs)}
        packed = (inputs, outputs // 8) if shape.scheme == "awq" else (inputs // 8, outputs)
        return {
            "qweight": words(*packed),
            "qzeros": words(inputs // GROUP, outputs // 8),
            "scales": numbers(inputs // GROUP, outputs).half(),
        }

    outer = {"model.embed_tokens.weight": numbers(shape.vocab, shape.hidden)}
    outer["model.norm.weight"] = torch.ones(shape.hidden, dtype=torch.bfloat16)
    if not shape.tied:
        outer["lm_head.weight"] = numbers(shape.vocab, shape.hidden)
    yield outer
    for i in range(shape.layers):
        layer = f"model.layers.{i}"
        tensors = {
            f"{layer}.{name}.{part}": tensor
            for name, size in shape.linears().items()
            for part, tensor in linear(*size).items()
        }
        norms = {"input_layernorm": shape.hidden, "post_attention_layernorm": shape.hidden}
        if shape.experts:
            head_size = shape.hidden // shape.heads
            norms |= {"self_attn.q_norm": head_size, "self_attn.k_norm": head_size}
        for norm, size in norms.items():
            tensors[f"{layer}.{norm}.weight"] = torch.ones(size, dtype=torch.bfloat16)
        yield tensors


def write(shape: Shape, folder: Path) -> None:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for i, tensors in enumerate(files_of(shape)):
        save_file(tensors, folder / f"model-{i:05}.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(shape.config()))


def anonymous_bytes(pid: int | str) -> int:
    """Of a process that runs; 0 of one that has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    return 0


def load(folder: str, quantization: str | None) -> dict[str, int]:
    """Bytes before and after loading, and of the weights that were kept."""
    from vllm import LLM

    from cpu_backend.ops import PackedLinear
    from cpu_backend.worker.model_runner import CPUModelRunner

    found = {}
    load_model = CPUModelRunner.load_model

    def watched(self: CPUModelRunner, *args: Any, **kwargs: Any) -> None:
        found["before"] = anonymous_bytes("self")
        load_model(self, *args, **kwargs)
        found["after"] = anonymous_bytes("self")
        kept = sum(o.nbytes for o in gc.get_objects() if issubclass(type(o), PackedLinear))
        found["weights"] = kept + sum(p.nbytes for p in self.get_model().parameters())

    CPUModelRunner.load_model = watched  # type: ignore[method-assign]
    LLM(
        folder,
        device="cpu",
        dtype="bfloat16",
        max_model_len=1024,
        skip_tokenizer_init=True,
        quantization=quantization,
    )
    return found


def measure(folder: Path, quantization: str | None) -> dict[str, int]:
    """``load`` in a process of its own, and the peak until its engine was ready."""
    command = [sys.executable, "-m", "benchmarks.load_memory", "--load", str(folder)]
    command += ["--quantization", quantization] if quantization else []
    environ = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            time.sleep(SAMPLE_S)
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    if process.returncode:
        sys.exit(f"error: the engine did not start (exit status {process.returncode})")
    return {**json.loads(lines[-1]), "peak": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shape", choices=SHAPES, nargs="?", default="7B-awq")
    parser.add_argument("--quantization", help="as for vllm serve")
    parser.add_argument("--folder", type=Path, help="the checkpoint, kept for the next time")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        print(f"\n{json.dumps(load(options.load, options.quantization))}")
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "config.json").exists():
            write(SHAPES[options.shape], folder)
        found = measure(folder, options.quantization)
    for name in ("weights", "before", "peak", "after"):
        print(f"{name:8} {found[name] / 2**30:6.2f} GiB")


if __name__ == "__main__":
    main()
