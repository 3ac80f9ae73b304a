"""Quantized checkpoints of the real model, end to end: how sure they are of a text.

What they answer is printed and not judged: rounding weights may turn a near tie.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from tests import tools
from tests.conftest import mostly_slow
from tests.e2e import engine
from tests.e2e.conftest import Quantize

ROOT = Path(__file__).resolve().parents[2]
QUESTION = "What is the capital of France?"
TEXT = (ROOT / "tests/e2e/alice.txt").read_text()

# Perplexity on the text, as a multiple of bf16's: what rounding to nearest costs a small model.
SCHEMES = {
    "w8a8": 1.1,
    "w8a8-azp": 1.1,
    "w8a8-tensor": 1.25,
    "w8a8-static": 2.2,
    "w8a8-static-azp": 2.2,
    "w8a16": 1.05,
    "w4a16": 1.35,
    "w4a16-zp": 1.35,
    "w4a8": 1.4,
    "gptq": 1.4,
    "gptq-zp": 1.35,
    "gptq-v2": 1.35,
    "gptq-act-order": 1.4,
    "gptq-8": 1.05,
    "gptq-3": 4.0,
    "awq": 1.35,
    "fp8": 1.1,
    "fp8-tensor": 1.1,
    "fp8-static": 1.1,
    "fp8-block": 1.1,
    "fp8-deepseek": 1.1,
    "mxfp8": 1.1,
    "mxfp4": 2.0,
    "nvfp4": 1.8,
    "nvfp4a16": 1.8,
    "modelopt-fp8": 1.1,
    "modelopt-nvfp4": 1.8,
    "quark-fp8": 1.1,
    "quark-int8": 1.1,
    "autoround-gptq": 1.4,
    "autoround-awq": 1.35,
    "bnb-nf4": 1.35,
    "bnb-fp4": 1.6,
    "bnb-int8": 1.05,
}
# One of each way of storing: these are in every run.
QUICK = (
    "w8a8",
    "w4a16",
    "gptq-act-order",
    "awq",
    "fp8-deepseek",
    "mxfp8",
    "modelopt-nvfp4",
    "bnb-nf4",
)


@pytest.fixture(scope="session")
def question(model_path: str) -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    chat = [{"role": "user", "content": QUESTION}]
    ids: list[int] = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    return ids


@pytest.fixture(scope="session")
def text(model_path: str) -> list[int]:
    ids: list[int] = AutoTokenizer.from_pretrained(model_path)(TEXT).input_ids
    return ids


@pytest.fixture(scope="module")
def perplexity(model_path: str, question: list[int], text: list[int]) -> Callable[..., float]:
    """``perplexity(model, ...)`` of the text."""
    tokenizer = AutoTokenizer.from_pretrained(model_path)

    def run(
        model: str | Path,
        dtype: str = "bfloat16",
        environ: dict[str, str] | None = None,
        **options: Any,
    ) -> float:
        job: dict[str, Any] = {
            "engine": {"model": str(model), "dtype": dtype, "max_model_len": 2048, **options},
            "batches": [[question], [text]],
            "sampling": {"max_tokens": 24, "prompt_logprobs": 0},
        }
        [[said], [read]] = engine.run(job, **(environ or {}))
        result = math.exp(-torch.tensor(read["prompt_logprobs"]).mean().item())
        print(f"perplexity {result:.2f}, says {tokenizer.decode(said['tokens'])!r}")
        return result

    return run


@pytest.fixture(scope="module")
def unquantized(model_path: str, perplexity: Callable[..., float]) -> float:
    """Perplexity of the model in bf16."""
    return perplexity(model_path)


TORCHAO = {"int8": 1.05, "int4": 1.4, "fp8": 1.1}


@pytest.mark.slow
@pytest.mark.needs("torchao")
@pytest.mark.parametrize("kind", TORCHAO)
def test_torchao_keeps_its_perplexity(
    kind: str,
    model_path: str,
    perplexity: Callable[..., float],
    unquantized: float,
    tmp_path: Path,
) -> None:
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tools.TORCHAO)])}
    command = [sys.executable, "-m", "tests.e2e.torchao_copy", model_path, str(tmp_path / kind)]
    subprocess.run([*command, kind], check=True, env={**os.environ, **path})
    assert perplexity(tmp_path / kind, environ=path) < TORCHAO[kind] * unquantized


@pytest.fixture
def quantized(model_path: str, tmp_path: Path, quantize: Quantize) -> Callable[[str], Path]:
    """``quantized(scheme)``: the path of a checkpoint made from the real weights."""
    return lambda scheme: quantize(scheme, Path(model_path), tmp_path / scheme)


@pytest.mark.parametrize("scheme", mostly_slow(SCHEMES, *QUICK))
def test_checkpoint_keeps_its_perplexity(
    scheme: str,
    quantized: Callable[[str], Path],
    perplexity: Callable[..., float],
    unquantized: float,
) -> None:
    assert perplexity(quantized(scheme)) <= SCHEMES[scheme] * unquantized


def test_int8_activations_can_be_asked_for(
    quantized: Callable[[str], Path],
    perplexity: Callable[..., float],
    unquantized: float,
) -> None:
    assert (
        perplexity(quantized("w4a16"), environ={"CPU_BACKEND_ACTIVATIONS": "int8"})
        <= 1.4 * unquantized
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_dtype_of_activations(
    dtype: str,
    quantized: Callable[[str], Path],
    perplexity: Callable[..., float],
    unquantized: float,
) -> None:
    assert perplexity(quantized("awq"), dtype=dtype) <= 1.35 * unquantized


def _broken(source: Path, target: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    tensors = load_file(source / "model.safetensors")
    edit(tensors)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


def _failure(model: Path) -> str:
    """The last words of an engine that cannot start."""
    job = {
        "engine": {"model": str(model), "max_model_len": 256},
        "batches": [],
        "sampling": {"max_tokens": 1},
    }
    with pytest.raises(AssertionError) as error:
        engine.run(job)
    return str(error.value)


@pytest.mark.parametrize("name", mostly_slow(["cpu_int8", "cpu_int4"], "cpu_int8"))
def test_quantization_at_load(
    name: str, model_path: str, perplexity: Callable[..., float], unquantized: float
) -> None:
    assert (
        perplexity(model_path, quantization=name)
        <= {"cpu_int8": 1.02, "cpu_int4": 1.1}[name] * unquantized
    )


def test_bad_checkpoints_are_refused_by_name(
    quantized: Callable[[str], Path], tmp_path: Path
) -> None:
    source = quantized("fp8")
    layer = "model.layers.3.mlp.down_proj"

    def put_nan(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{layer}.weight"].view(torch.uint8)[5, 7] = 0x7F

    broken = _broken(source, tmp_path / "nan", put_nan)
    assert f"{layer} cannot be loaded: the weight has NaN in it" in _failure(broken)


def test_unknown_settings_and_widths_are_refused(
    quantized: Callable[[str], Path], tmp_path: Path
) -> None:
    source = quantized("gptq")
    broken = _broken(source, tmp_path / "bits", lambda _: None)
    config = json.loads((broken / "config.json").read_text())
    config["quantization_config"]["bits"] = 5
    (broken / "config.json").write_text(json.dumps(config))
    assert "GPTQ checkpoints of 5 bits are not known" in _failure(broken)
