"""The models, and the forms of them that the peers read.

A model is a Hugging Face checkpoint folder; llama.cpp reads a GGUF file made from it and OpenVINO
an exported folder, one per weight type, all made once under the cache folder. Every form holds the
same weights, so the peers compute the same model. `shape` says how much a model has to read and to
multiply, which `work.py` turns into the bounds.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.compare.environments import run_step
from tools import llama_cpp

CONVERT = Path(__file__).parent / "convert"
QUANTIZE = Path(__file__).parents[2] / "examples" / "quantize_model.py"


@dataclass(frozen=True)
class Model:
    """``prompt`` and its tokens are what every peer continues greedily to show what it computes."""

    name: str
    prompt: str
    prompt_tokens: tuple[int, ...]
    # For a model of random weights: config.json. None: the demo model, with real weights.
    config: dict[str, object] | None = None


MODELS = {
    model.name: model
    for model in (
        Model(
            "SmolLM2-135M-Instruct",
            "The capital of France is",
            (504, 3575, 282, 4649, 314),
        ),
        Model(
            "Llama-3.2-1B-dummy",
            "tokens 1 to 8",
            tuple(range(1, 9)),
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "attention_bias": False,
                "bos_token_id": 128000,
                "eos_token_id": 128001,
                "head_dim": 64,
                "hidden_act": "silu",
                "hidden_size": 2048,
                "initializer_range": 0.02,
                "intermediate_size": 8192,
                "max_position_embeddings": 131072,
                "mlp_bias": False,
                "num_attention_heads": 32,
                "num_hidden_layers": 16,
                "num_key_value_heads": 8,
                "rms_norm_eps": 1e-05,
                # The real model scales its frequencies too; its weights are random here, so plain
                # rotation keeps the conversions simple and costs the same.
                "rope_theta": 500000.0,
                "tie_word_embeddings": True,
                "torch_dtype": "bfloat16",
                "vocab_size": 128256,
            },
        ),
        Model(  # 4 of 48 layers, which is what fits 24 GiB in bf16
            "Qwen3-30B-A3B-4-layers-dummy",
            "tokens 1 to 8",
            tuple(range(1, 9)),
            {
                "architectures": ["Qwen3MoeForCausalLM"],
                "model_type": "qwen3_moe",
                "attention_bias": False,
                "bos_token_id": 151643,
                "decoder_sparse_step": 1,
                "eos_token_id": 151645,
                "head_dim": 128,
                "hidden_act": "silu",
                "hidden_size": 2048,
                "initializer_range": 0.02,
                "intermediate_size": 6144,
                "max_position_embeddings": 40960,
                "mlp_only_layers": [],
                "moe_intermediate_size": 768,
                "norm_topk_prob": True,
                "num_attention_heads": 32,
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "num_hidden_layers": 4,
                "num_key_value_heads": 4,
                "rms_norm_eps": 1e-06,
                "rope_theta": 1000000.0,
                "tie_word_embeddings": False,
                "torch_dtype": "bfloat16",
                "vocab_size": 151936,
            },
        ),
    )
}


@dataclass(frozen=True)
class Shape:
    """What one decoder-only Llama costs: weights in elements, attention per token of context.

    Of a mixture of experts those of one token count, so bounds of a batch are above the truth.
    """

    layer_weights: int  # all linear layers of all decoder layers
    head_weights: int  # lm_head, whether tied or not
    kv_elements: int  # of one token of context, keys and values, all layers
    attention_flop: int  # of one query token per token of context
    vocab_size: int

    @classmethod
    def of(cls, config: dict[str, int]) -> Shape:
        hidden, layers = config["hidden_size"], config["num_hidden_layers"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        head_dim = config.get("head_dim") or hidden // heads
        projections = hidden * head_dim * (2 * heads + 2 * kv_heads)
        mlp = 3 * hidden * config["intermediate_size"]
        if experts := config.get("num_experts"):
            chosen = config["num_experts_per_tok"] * config["moe_intermediate_size"]
            mlp = 3 * hidden * chosen + hidden * experts
        return cls(
            layer_weights=layers * (projections + mlp),
            head_weights=hidden * config["vocab_size"],
            kv_elements=layers * 2 * kv_heads * head_dim,
            attention_flop=layers * 4 * heads * head_dim,
            vocab_size=config["vocab_size"],
        )

    @classmethod
    def of_checkpoint(cls, folder: Path) -> Shape:
        return cls.of(json.loads((folder / "config.json").read_text()))


@dataclass(frozen=True)
class ModelFiles:
    """Makes and finds the forms of one model. ``python`` gives the interpreter of a peer.

    All methods raise SetupError with a reason where a form cannot be made.
    """

    model: Model
    cache: Path
    python: Callable[[str], Path]
    say: Callable[[str], None]

    def checkpoint(self) -> Path:
        if self.model.config is None:
            return self._demo_model()
        folder = self.cache / "models" / self.model.name / "checkpoint"
        return self._made(folder, self._write_random)

    def quantized(self, scheme: str) -> Path:
        """``scheme`` as examples/quantize_model.py names it."""
        source, script = str(self.checkpoint()), [str(self.python("cpu_backend")), str(QUANTIZE)]
        return self._made(self._folder() / scheme, lambda out: [*script, scheme, source, str(out)])

    def gguf(self, weights: str) -> Path:
        """``weights`` as GGUF names them: F32, BF16, F16, Q8_0, Q4_1."""
        path, source = self._folder() / f"{weights}.gguf", self.checkpoint()
        python = self.python("cpu_backend")
        return self._made(path, lambda out: llama_cpp.command(source, out, weights, python))

    def openvino(self, weights: str) -> Path:
        """``weights`` as optimum-intel names them: fp32, fp16, int8, int4."""
        folder = self._folder() / f"openvino-{weights}"
        command = [str(self.python("openvino")), "-m", "optimum.commands.optimum_cli"]
        command += ["export", "openvino", "--model", str(self.checkpoint())]
        command += ["--task", "text-generation-with-past", "--weight-format", weights]
        if weights == "int4":  # the default of 128 does not divide the demo model's 576 channels
            command += ["--group-size", "64"]
        return self._made(folder, lambda out: [*command, str(out)])

    def _folder(self) -> Path:
        return self.cache / "models" / self.model.name

    def _demo_model(self) -> Path:
        from cpu_backend.demo_model import default_dir

        folder = default_dir()
        if not (folder / "config.json").is_file():
            python = str(self.python("cpu_backend"))
            run_step([python, "-m", "cpu_backend.demo_model"], self._log("demo_model"))
        return folder

    def _write_random(self, folder: Path) -> list[str]:
        script = str(CONVERT / "random_checkpoint.py")
        config = json.dumps(self.model.config)
        return [str(self.python("transformers")), script, config, str(folder)]

    def _made(self, path: Path, command: Callable[[Path], list[str]]) -> Path:
        """``path``, written by the command under another name so that a stopped one leaves none."""
        if not path.exists():
            partial = path.with_name(f"partial-{path.name}")
            shutil.rmtree(partial, ignore_errors=True)
            partial.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.say(f"writing {path}")
            run_step(command(partial), self._log(path.name), {"HF_HUB_OFFLINE": "1"})
            partial.rename(path)
        return path

    def _log(self, name: str) -> Path:
        folder = self._folder()
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.log"
