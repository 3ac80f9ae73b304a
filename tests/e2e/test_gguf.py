"""GGUF files of the real model, served as they are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from transformers import AutoTokenizer

from cpu_backend.demo_model import fetch
from cpu_backend.gguf.reader import GgufFile
from tests.e2e import engine

ROOT = Path(__file__).resolve().parents[2]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TEXT = (ROOT / "tests/e2e/alice.txt").read_text()


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of which the demo model is the dequantized copy: Q4_1, and Q8_0 for the table."""
    folder = tmp_path_factory.mktemp("gguf")
    return fetch.fetch_gguf(folder, folder / "LICENSE")


def mixed(source: Path, target: Path) -> Path:
    """A copy with other types in some matrices, so that merged layers have two of them; each
    holds the values of the original as well as fp16 does, or to 1/127 of a block's largest."""
    kinds = {"attn_v": "Q8_0", "ffn_up": "Q8_0", "attn_output": "F16", "ffn_down": "F32"}
    writer = gguf.GGUFWriter(target, "llama")
    for key, value in GgufFile(source).metadata.items():
        if isinstance(value, np.ndarray):
            writer.add_array(key, value.tolist())
        elif key != "general.architecture":
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
            add |= {str: writer.add_string, list: writer.add_array}
            add[type(value)](key, value)
    for tensor in gguf.GGUFReader(source).tensors:
        name = kinds.get(tensor.name.split(".")[-2])
        if name is None:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.fixture(scope="session")
def answers(
    model_path: str, gguf_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[list[int], float]]:
    """Of each model, computing in fp32: greedy tokens after the question, perplexity of a text."""
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    question = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True)["input_ids"]
    models = {
        "checkpoint": model_path,
        "gguf": gguf_file,
        "mixed": mixed(gguf_file, tmp_path_factory.mktemp("mixed") / "mixed.gguf"),
    }
    found = {}
    with engine.Engines() as engines:
        for name, model in models.items():
            job: dict[str, Any] = {
                "engine": {"model": str(model), "dtype": "float32", "max_model_len": 2048},
                "batches": [[question], [tokenizer(TEXT).input_ids]],
                "sampling": {"max_tokens": 24, "prompt_logprobs": 0},
            }
            [[said], [read]] = engines.run(job)
            logprobs = read["prompt_logprobs"]
            found[name] = said["tokens"], math.exp(-sum(logprobs) / len(logprobs))
    return found


def test_the_file_says_what_its_dequantized_copy_says(
    answers: dict[str, tuple[list[int], float]], model_path: str
) -> None:
    """The copy's weights were rounded to bf16, which is all that lies between them."""
    assert "Paris" in AutoTokenizer.from_pretrained(model_path).decode(answers["gguf"][0])
    assert answers["gguf"][0][:8] == answers["checkpoint"][0][:8]
    assert answers["gguf"][1] == pytest.approx(answers["checkpoint"][1], rel=0.005)


def test_types_may_be_mixed_within_a_layer(answers: dict[str, tuple[list[int], float]]) -> None:
    assert answers["mixed"][1] == pytest.approx(answers["gguf"][1], rel=0.01)
