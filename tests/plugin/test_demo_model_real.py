# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Contributors to vllm-cpu-backend
"""The real demo model, made once, in the user's cache, by the command that users run."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cpu_backend.demo_model.store import RECORD_NAME

# SmolLM2's vocabulary has no token for these six control characters: its tokenizer drops them.
UNKNOWN_CONTROLS = "\x04\x06\x13\x14\x16\x1d"


@pytest.fixture(scope="session")
def real_model(tmp_path_factory):
    """Path of the real demo model, made by the command that users run if the cache lacks it."""
    command = [sys.executable, "-m", "cpu_backend.demo_model"]
    run = subprocess.run(
        command, cwd=tmp_path_factory.mktemp("run"), stdout=subprocess.PIPE, text=True, check=True
    )
    assert run.stdout.count("\n") == 1
    return Path(run.stdout.strip())


@pytest.fixture(scope="session")
def tokenizer(real_model):
    return AutoTokenizer.from_pretrained(real_model)


def test_real_model_has_all_files(real_model):
    names = {"config", "generation_config", "tokenizer", "tokenizer_config", "special_tokens_map"}
    others = {"model.safetensors", "LICENSE", RECORD_NAME}
    expected = {f"{name}.json" for name in names} | others
    assert {path.name for path in real_model.iterdir()} == expected
    assert "Apache License" in (real_model / "LICENSE").read_text()


def test_real_model_config(real_model):
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "head_dim": 64,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "max_position_embeddings": 8192,
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": 49152,
    }
    config = json.loads((real_model / "config.json").read_text())
    assert {key: config[key] for key in expected} == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  two  spaces  ",
        "tabs\tand\r\nlines\n\n\n",
        "1234567890 3.14159 0x7F",
        "naïve café Ångström",
        "東京 Привет שלום مرحبا",
        "👩‍👩‍👧‍👦 🏳️‍🌈 🙂🏽",
        "e\u0301 versus \u00e9 \u200b\u00a0\u2028\ufeff",
        "don't I'll we've IT'S",
        "<|im_start|>user\nhi<|im_end|>\n",
        "<|im_start <|im_ |> not special",
        'def f(x):\n    return {"a": [x**2, -1e-5]}',
    ],
)
def test_tokenizer_gives_text_back(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_tokenizer_gives_random_unicode_back(tokenizer):
    dice = random.Random(0)
    # The vocabulary ends before byte f1, where unassigned characters beyond U+3FFFF begin.
    letters = [
        chr(code)
        for code in range(0x40000)
        if not 0xD800 <= code < 0xE000 and chr(code) not in UNKNOWN_CONTROLS
    ]
    for _ in range(200):
        text = "".join(
            dice.choices(
                letters[: dice.choice([128, 0x800, len(letters)])], k=dice.randrange(1, 60)
            )
        )
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_special_tokens_are_single_and_never_split(tokenizer):
    for index, text in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]):
        assert tokenizer(text).input_ids == [index]
    ids = tokenizer("a<|im_end|>b<|im_start|>").input_ids
    assert (ids[1], ids[3:]) == (2, [1])
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)


def test_chat_template_opens_the_answer(tokenizer):
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt.startswith("<|im_start|>system\n")
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_real_model_knows_the_capital_of_france(real_model, tokenizer, dtype):
    model = AutoModelForCausalLM.from_pretrained(real_model, dtype=dtype)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, do_sample=False, max_new_tokens=24)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
    assert "Paris" in answer
    assert answer.endswith("<|im_end|>")
