"""What users get wrong: each start ends with a non-zero exit and one sentence that says it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests import tools
from tests.e2e.forked_cli import Done, Run, run_all
from tests.e2e.server import environment, free_port

Change = Callable[[Path], None]
LAYER = "model.layers.3.mlp.down_proj.weight"

# Only configurations are built: no process is started, no weight is read.
CONFIGURE = """
import json, os, sys
from vllm.engine.arg_utils import EngineArgs
from cpu_backend.errors import ConfigError
sentences = []
for variable, value in json.loads(sys.argv[2]):
    os.environ[variable] = value
    try:
        EngineArgs(model=sys.argv[1], device="cpu", max_model_len=2048).create_engine_config()
        sentences.append("")
    except ConfigError as error:
        if len(sys.argv) > 3:
            raise
        sentences.append(str(error))
    del os.environ[variable]
print(json.dumps(sentences))
"""

CASES = [
    ("VLLM_CPU_KVCACHE_SPACE", "0.5", ""),
    ("VLLM_CPU_KVCACHE_SPACE", "100000", "GiB"),
    ("VLLM_CPU_KVCACHE_SPACE", "-1", "positive"),
    ("VLLM_CPU_KVCACHE_SPACE", "lots", "positive"),
    ("VLLM_CPU_KVCACHE_SPACE", "0.001", "one request of 2048 tokens"),
    ("VLLM_CPU_OMP_THREADS_BIND", "0-1|2-3", "rank"),
    ("VLLM_CPU_OMP_THREADS_BIND", "4096", "4096"),
    ("VLLM_CPU_OMP_THREADS_BIND", "fast", "fast"),
    ("VLLM_CPU_NUM_OF_RESERVED_CPU", "-3", "VLLM_CPU_NUM_OF_RESERVED_CPU"),
    ("CPU_VISIBLE_MEMORY_NODES", "77", "77"),
]


def configure(
    model: str, settings: list[tuple[str, str]], *arguments: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    env = environment(VLLM_LOGGING_LEVEL="ERROR", **environ)
    del env["VLLM_CPU_KVCACHE_SPACE"]
    command = [sys.executable, "-c", CONFIGURE, model, json.dumps(settings), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)


@pytest.fixture(scope="module")
def sentences(model_path: str) -> list[str]:
    """What each of CASES says, all asked in one process."""
    done = configure(model_path, [(variable, value) for variable, value, _ in CASES])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: "=".join(CASES[case][:2]))
def test_wrong_setting_says_what_and_how_to_mend_it(sentences: list[str], case: int) -> None:
    words = CASES[case][2]
    assert words in sentences[case]
    assert bool(words) == bool(sentences[case])
    assert "\n" not in sentences[case]


@pytest.mark.parametrize(
    ("environ", "settings", "words"),
    [
        ({"CPU_BACKEND_ISA": "avx1024"}, [("HF_HUB_OFFLINE", "1")], "CPU_BACKEND_ISA=avx1024"),
        ({}, [("VLLM_CPU_KVCACHE_SPACE", "-1")], "positive"),
    ],
)
def test_wrong_setting_ends_the_process_with_one_line(
    model_path: str, environ: dict[str, str], settings: list[tuple[str, str]], words: str
) -> None:
    done = configure(model_path, settings, "raise", **environ)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("cpu_backend: ")]
    assert words in line


# ---- the command line ----------------------------------------------------------------------------


def without(*names: str) -> Change:
    return lambda folder: [(folder / name).unlink() for name in names] and None


def with_config(**changed: Any) -> Change:
    """config.json with some values changed; None removes one."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | changed
        kept = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept))

    return change


def truncated(folder: Path) -> None:
    weights = folder / "model.safetensors"
    original = weights.resolve()
    weights.unlink()
    shutil.copy(original, weights)
    os.truncate(weights, weights.stat().st_size // 2)


def with_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    """model.safetensors with what ``change`` has done to it."""

    def rewrite(folder: Path) -> None:
        weights = folder / "model.safetensors"
        tensors = load_file(weights)
        weights.unlink()  # the demo model's own, of which the folder has a link
        change(tensors)
        save_file(tensors, weights, {"format": "pt"})

    return rewrite


def with_bias(value: float) -> Callable[[dict[str, torch.Tensor]], object]:
    """A bias of that value for a layer that has none by its config.json."""
    bias = LAYER.removesuffix("weight") + "bias"
    return lambda tensors: tensors.update({bias: torch.full_like(tensors[LAYER][:, 0], value)})


def text(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content) and None


@dataclass(frozen=True)
class Mistake:
    """What is wrong, and words of the sentence that says so."""

    words: str
    change: Change | None = None
    arguments: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    program: str = "vllm"


ONE_OF_EACH = {
    "truncated weights": Mistake("model.safetensors' is cut short", truncated),
    "no config": Mistake("has no config.json", without("config.json")),
    "no type": Mistake(
        "Should have a `model_type` key", with_config(model_type=None, architectures=None)
    ),
    "unknown architecture": Mistake(
        "['FooForCausalLM']", with_config(architectures=["FooForCausalLM"])
    ),
    "impossible heads": Mistake(
        "not a multiple of the number of", with_config(num_attention_heads=7)
    ),
    "no tokenizer": Mistake("has no tokenizer", without("tokenizer.json", "tokenizer_config.json")),
    "damaged tokenizer": Mistake("cannot be loaded", text("tokenizer.json", '{"version": "1.0"}')),
    "unknown scheme": Mistake(
        "The quantization 'foo' is not known",
        with_config(quantization_config={"quant_method": "foo"}),
    ),
    "more layers than weights": Mistake(
        "were not initialized from checkpoint", with_config(num_hidden_layers=31)
    ),
    "smaller layers than weights": Mistake(
        "config.json makes it [576, 1000]", with_config(intermediate_size=1000)
    ),
    "smaller vocabulary than weights": Mistake(
        "config.json makes it [40000, 576]", with_config(vocab_size=40000)
    ),
    "numbers that are said to be codes": Mistake(
        "makes it float8_e4m3fn: correct its quantization_config",
        with_config(quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"}),
    ),
    "a layer left out": Mistake(
        f"The checkpoint has nothing for {LAYER}",
        with_weights(lambda tensors: tensors.pop(LAYER)),
    ),
    "a layer in two files": Mistake(
        "twice, and they may differ: leave one of each in its folder",
        lambda folder: os.symlink(folder / "model.safetensors", folder / "more.safetensors"),
    ),
    "a bias that the host passes over": Mistake(
        f"LlamaForCausalLM has no place for {LAYER.removesuffix('weight')}bias",
        with_weights(with_bias(1.0)),
    ),
    "no head": Mistake(
        "The checkpoint has nothing for lm_head.weight", with_config(tie_word_embeddings=False)
    ),
    "codes that are said to be numbers": Mistake(
        "is of int8 in the checkpoint, and its config.json makes it bfloat16",
        with_weights(lambda tensors: tensors.update({LAYER: tensors[LAYER].to(torch.int8)})),
    ),
    "words for a number": Mistake("rope_theta is 'big'", with_config(rope_theta="big")),
    "tokenizer mode": Mistake(
        "--tokenizer-mode foo is not known", arguments=("--tokenizer-mode", "foo")
    ),
    "generation config": Mistake(
        "folder '/no/such' does not exist", arguments=("--generation-config", "/no/such")
    ),
    "logits processor": Mistake(
        "No module named 'foo'", arguments=("--logits-processors", "foo:Bar")
    ),
    "no adapter": Mistake(
        "LoRA adapter folder '/no/such' does not exist",
        arguments=("--enable-lora", "--lora-modules", "a=/no/such"),
    ),
    "long": Mistake("longer than the 8192 tokens", arguments=("--max-model-len", "999999")),
    "small cache": Mistake(
        "choose --max-model-len 2048 or less (auto takes what fits), give it more memory",
        arguments=("--kv-cache-memory-bytes", "50M"),
        environ=(("VLLM_CPU_KVCACHE_SPACE", ""),),
    ),
    "quantization": Mistake("'foo' is not known", arguments=("--quantization", "foo")),
    "tokenizer elsewhere": Mistake(
        "/no/tokenizer' does not exist", arguments=("--tokenizer", "/no/tokenizer")
    ),
    "cache dtype": Mistake(
        "--kv-cache-dtype nvfp4 is not", arguments=("--kv-cache-dtype", "nvfp4")
    ),
    "tool parser": Mistake(
        "invalid tool call parser",
        arguments=("--enable-auto-tool-choice", "--tool-call-parser", "foo"),
    ),
    "reasoning parser": Mistake("parser 'foo' not found", arguments=("--reasoning-parser", "foo")),
    "chat template": Mistake(
        "appears path-like, but doesn't exist", arguments=("--chat-template", "/no/such.jinja")
    ),
    "middleware": Mistake(
        "The Python module foo is not installed", arguments=("--middleware", "foo.bar")
    ),
    "certificate": Mistake(
        "No such file", arguments=("--ssl-keyfile", "/no", "--ssl-certfile", "/no")
    ),
    "start method": Mistake(
        "VLLM_WORKER_MULTIPROC_METHOD=foo", environ=(("VLLM_WORKER_MULTIPROC_METHOD", "foo"),)
    ),
    "server": Mistake("'foo' is not known", arguments=("--quantization", "foo"), program="server"),
    "LLM": Mistake("longer than the 8192", arguments=("max_model_len=999999",), program="LLM"),
    "LLM truncated": Mistake("is cut short", truncated, program="LLM"),
    "LLM dtype": Mistake("dtype", arguments=('dtype="foo"',), program="LLM"),
}
PLACES = {
    "no such folder": ("/no/such/model", "folder '/no/such/model' does not exist"),
    "no such name": ("no-one/no-model", "neither a folder nor in the cache"),
}
GPU_COMMANDS = {
    "preload": (("preload", "--model", "/any", "--device", "cpu"), "weights in a GPU's memory"),
    "snapshot create": (
        ("snapshot", "create", "--model", "/any", "--snapshot-dir", "/any"),
        "saves what a GPU holds",
    ),
    "snapshot restore": (("snapshot", "restore", "/any"), "`vllm serve` instead"),
}
if tools.is_there("vLLM 0.33"):
    GPU_COMMANDS["bench forward"] = (("bench", "forward", "--model", "/any"), "times CUDA graphs")


@pytest.fixture(scope="module")
def endings(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """How each of the mistakes ends, all tried in one process after the imports."""
    folder = tmp_path_factory.mktemp("mistakes")
    runs = []
    for mistake in ONE_OF_EACH.values():
        model = model_path
        if mistake.change is not None:
            model = str(folder / str(len(runs)))
            shutil.copytree(model_path, model, copy_function=os.symlink)
            for file in Path(model).glob("*.json"):
                target = file.resolve()
                file.unlink()
                shutil.copy(target, file)
            mistake.change(Path(model))
        runs.append(
            start(model, *mistake.arguments, program=mistake.program, environ=mistake.environ)
        )
    runs += [start(model) for model, _ in PLACES.values()]
    runs += [Run(words) for words, _ in GPU_COMMANDS.values()]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        runs.append(start(model_path, "--port", str(other.getsockname()[1])))
        done = run_all(runs, folder)
    return dict(zip([*ONE_OF_EACH, *PLACES, *GPU_COMMANDS, "port"], done, strict=True))


def start(
    model: str, *arguments: str, program: str = "vllm", environ: tuple[tuple[str, str], ...] = ()
) -> Run:
    if program == "LLM":
        return Run((f"model={json.dumps(model)}", *arguments), program, environ)
    named = ("serve", model) if program == "vllm" else ("--model", model)
    port = () if "--port" in arguments else ("--port", str(free_port()))
    return Run((*named, "--host", "127.0.0.1", *port, *arguments), program, environ)


@pytest.mark.parametrize("name", [*ONE_OF_EACH, *PLACES, *GPU_COMMANDS, "port"])
def test_mistake_ends_the_start_with_one_sentence(endings: dict[str, Done], name: str) -> None:
    words = {**{name: m.words for name, m in ONE_OF_EACH.items()}, "port": "listens at 127.0.0.1"}
    words |= {name: said for name, (_, said) in (PLACES | GPU_COMMANDS).items()}
    done = endings[name]
    assert done.code == 1, done.err[-4000:]
    assert words[name] in done.sentence
    assert "Traceback" not in done.out + done.err


def test_device_typo_names_the_choices(model_path: str, tmp_path: Path) -> None:
    [done] = run_all([start(model_path, "--device", "gpu")], tmp_path)
    assert done.code == 2
    assert "invalid choice: 'gpu'" in done.err
