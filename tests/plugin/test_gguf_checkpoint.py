"""A GGUF file as a checkpoint: configuration, tokenizer, the folder, and what is refused."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoTokenizer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from cpu_backend.errors import ConfigError
from cpu_backend.gguf import folder
from cpu_backend.gguf.architectures.base import llama3_factors
from cpu_backend.gguf.checkpoint import Checkpoint
from cpu_backend.gguf.reader import GgufFile
from cpu_backend.gguf.tokenizer import GgufTokenizer
from cpu_backend.host import engine_arguments
from tests.plugin.gguf_samples import (
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    SPECIAL,
    checkpoint_weights,
    gguf_weights,
    write_gguf,
)

Edit = Callable[[dict[str, Any], dict[str, np.ndarray]], None]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/cpu_backend/gguf"


def write(path: Path, edit: Edit = lambda fields, tensors: None, arch: str = "llama") -> Path:
    """The small model of gguf_samples after ``edit(fields, tensors)``; None removes a field."""
    write_gguf(path.with_suffix(".plain"))
    plain = GgufFile(path.with_suffix(".plain"))
    fields = {
        key.replace("llama.", f"{arch}."): value
        for key, value in plain.metadata.items()
        if key != "general.architecture"
    }
    tensors = {name: weight for name, weight in gguf_weights()}
    edit(fields, tensors)
    writer = gguf.GGUFWriter(path, arch)
    for key, value in fields.items():
        if isinstance(value, np.ndarray):
            writer.add_array(key, value.tolist())
        elif value is not None:
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
            add |= {str: writer.add_string, list: writer.add_array}
            add[type(value)](key, value)
    for name, weight in tensors.items():
        half = weight.dtype == np.float16
        writer.add_tensor(name, np.ascontiguousarray(weight, np.float16 if half else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read(tmp_path: Path, edit: Edit = lambda fields, tensors: None, arch: str = "llama") -> Any:
    return Checkpoint(GgufFile(write(tmp_path / "model.gguf", edit, arch)))


def test_weights_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = read(tmp_path)
    assert checkpoint.entries.keys() == checkpoint_weights().keys()
    for name, weight in checkpoint_weights().items():
        assert np.array_equal(checkpoint.values(checkpoint.entries[name]).numpy(), weight), name
    assert checkpoint.tied
    assert checkpoint.config["torch_dtype"] == "float32"


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_qwen_keeps_rows_in_order_and_has_its_own_tensors(tmp_path: Path, arch: str) -> None:
    def edit(fields: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        for layer in range(2):
            if arch == "qwen2":
                for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                    tensors[f"blk.{layer}.attn_{name}.bias"] = np.ones(heads * HEAD_DIM)
            else:
                tensors[f"blk.{layer}.attn_q_norm.weight"] = np.ones(HEAD_DIM)
                tensors[f"blk.{layer}.attn_k_norm.weight"] = np.ones(HEAD_DIM)

    checkpoint = read(tmp_path, edit, arch)
    assert checkpoint.config["model_type"] == arch
    layer = "model.layers.1.self_attn."
    name = layer + ("k_proj.bias" if arch == "qwen2" else "k_norm.weight")
    assert checkpoint.values(checkpoint.entries[name]).shape == checkpoint.entries[name].info.shape
    stored = dict(gguf_weights())["blk.1.attn_k.weight"]
    entry = checkpoint.entries[layer + "k_proj.weight"]
    assert np.array_equal(checkpoint.values(entry).numpy(), stored)
    with pytest.raises(ConfigError, match=r"has no tensor 'blk\.0\.attn_"):
        read(tmp_path, arch=arch)


def test_rope_of_llama3_is_found_again(tmp_path: Path) -> None:
    expected = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    factors = llama3_factors(HEAD_DIM, 100000.0, expected).astype(np.float32)
    config = AutoConfig.for_model("llama", rope_scaling=dict(expected), rope_theta=100000.0)
    config.head_dim = HEAD_DIM
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 100000.0 ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    torch.testing.assert_close(plain / torch.from_numpy(factors), frequencies)

    def put(fields: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        tensors["rope_freqs.weight"] = factors

    assert read(tmp_path, put).config["rope_scaling"] == expected

    def put_other(fields: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        tensors["rope_freqs.weight"] = np.linspace(1, 9, HEAD_DIM // 2)

    with pytest.raises(ConfigError, match="not those of Llama 3"):
        read(tmp_path, put_other)


def test_yarn_comes_from_the_metadata(tmp_path: Path) -> None:
    def edit(fields: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        fields["llama.rope.scaling.type"] = "yarn"
        fields["llama.rope.scaling.factor"] = 4.0
        fields["llama.rope.scaling.original_context_length"] = 32

    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    assert read(tmp_path, edit).config["rope_scaling"] == scaling


def _fields(values: dict[str, Any]) -> Edit:
    return lambda fields, tensors: fields.update(values)


def _field(key: str, value: Any) -> Edit:
    return _fields({key: value})


def _tensor(name: str, value: np.ndarray | None) -> Edit:
    def edit(fields: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (_field("llama.block_count", 0), "has 0 in the field 'llama.block_count'"),
        (_field("llama.block_count", LAYERS + 1), "has no tensor 'blk.2.attn_norm.weight'"),
        (_field("llama.block_count", 2**31 - 1), "20 tensors are too few for so many layers"),
        (_field("llama.attention.head_count", None), "no field 'llama.attention.head_count'"),
        (_field("llama.attention.head_count", "8"), "head_count' of another type"),
        (_field("llama.attention.layer_norm_rms_epsilon", float("nan")), "has nan in the field"),
        (_field("llama.rope.dimension_count", 8), "only a part of each head"),
        (_field("llama.expert_count", 8), "no field 'llama.expert_used_count'"),
        (_field("llama.expert_count", np.ones(3)), "expert_count' of another type"),
        (_fields({"llama.expert_count": 2, "llama.expert_used_count": 3}), "uses 3 of 2 experts"),
        (
            _fields({"llama.expert_count": 2, "llama.expert_used_count": 1}),
            "has no tensor 'blk.0.ffn_gate_inp.weight'",
        ),
        (_field("llama.rope.scaling.type", "longrope"), "positions by 'longrope'"),
        (_field("llama.rope.scaling.type", np.ones(2)), "rope.scaling.type' of another type"),
        (_fields({"split.count": 3, "split.no": 0}), "part 1 of 3 and not called so: call the"),
        (_field("split.count", np.ones(2, int)), "'split.count' of another type"),
        (_field("llama.logit_scale", 0.25), "'llama.logit_scale', which is not supported"),
        (_field("tokenizer.ggml.eos_token_id", 1 << 20), "has no token 1048576"),
        (_tensor("blk.1.ffn_up.weight", None), "has no tensor 'blk.1.ffn_up.weight'"),
        (_tensor("token_embd.weight", None), "has no tensor 'token_embd.weight'"),
        (_tensor("surprise", np.zeros(4)), "the unknown tensor 'surprise'"),
        (
            _tensor("blk.1.ffn_up.weight", np.zeros((FFN, HIDDEN + 1))),
            rf"'blk.1.ffn_up.weight' of shape \[{FFN}, {HIDDEN + 1}\] and \[{FFN}, {HIDDEN}\]",
        ),
    ],
)
def test_models_that_are_not_whole_are_refused(tmp_path: Path, edit: Edit, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read(tmp_path, edit)


@pytest.mark.parametrize(
    "value", [np.ones(2, int), np.ones(0), ["a", "b"], "text", 3, -1.5, True], ids=repr
)
def test_any_field_of_another_kind_is_read_or_named(tmp_path: Path, value: Any) -> None:
    path = write(tmp_path / "model.gguf")
    keys = [*GgufFile(path).metadata, "split.count", "llama.rope.scaling.type"]
    for key in [*keys, "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix"]:
        file = GgufFile(path)
        file.metadata[key] = value
        said = ""
        try:
            Checkpoint(file)
            GgufTokenizer(file).settings(64)
        except ConfigError as error:
            said = str(error)
        assert "\n" not in said
        assert not said or "model.gguf" in said


@pytest.mark.parametrize("key", ["expert_count", "rope.dimension_count", "vocab_size", None])
def test_a_huge_number_takes_no_memory(tmp_path: Path, key: str | None) -> None:
    """In any field that the file has, or in one more."""
    path = write(tmp_path / "model.gguf")
    numbers = [name for name, value in GgufFile(path).metadata.items() if type(value) is int]
    for name in [f"llama.{key}"] if key else numbers:
        file = GgufFile(path)
        file.metadata[name] = 2**31 - 1
        tracemalloc.start()
        with contextlib.suppress(ConfigError):
            Checkpoint(file)
            GgufTokenizer(file).settings(64)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 64 << 20, name


def test_a_model_in_several_files_is_read_from_the_first(tmp_path: Path) -> None:
    write_gguf(tmp_path / "whole.gguf")
    write_gguf(tmp_path / "model.gguf", tensors_per_file=8)
    parts = sorted(tmp_path.glob("model-*.gguf"))
    assert [part.name for part in parts] == [f"model-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    whole, checkpoint = (Checkpoint(GgufFile(p)) for p in (tmp_path / "whole.gguf", parts[0]))
    assert checkpoint.entries.keys() == whole.entries.keys()
    for name, entry in checkpoint.entries.items():
        assert torch.equal(checkpoint.values(entry), whole.values(whole.entries[name])), name

    with pytest.raises(ConfigError, match="is part 2 of 3: give the first, 'model-00001-of-00003"):
        GgufFile(parts[1])
    shutil.copy(parts[1], parts[2])
    with pytest.raises(ConfigError, match=r"'model-00003-of-00003\.gguf' is not part 3"):
        GgufFile(parts[0])
    parts[2].unlink()
    with pytest.raises(ConfigError, match=r"'.*model-00003-of-00003.gguf' cannot be read"):
        GgufFile(parts[0])


def test_experts_are_one_tensor_with_a_gate_of_the_type_of_its_up(tmp_path: Path) -> None:
    def edit(fields: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        fields |= {"llama.expert_count": 2, "llama.expert_used_count": 1}
        for layer in range(2):
            tensors[f"blk.{layer}.ffn_gate_inp.weight"] = np.ones((2, HIDDEN))
            for name in ("gate", "up", "down"):
                weight = tensors.pop(f"blk.{layer}.ffn_{name}.weight")
                tensors[f"blk.{layer}.ffn_{name}_exps.weight"] = np.stack([weight, weight])

    def edit_gate(fields: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        edit(fields, tensors)
        name = "blk.1.ffn_gate_exps.weight"
        tensors[name] = tensors[name].astype(np.float16)

    checkpoint = read(tmp_path, edit)
    assert checkpoint.config["architectures"] == ["MixtralForCausalLM"]
    gates = checkpoint.entries["model.layers.1.block_sparse_moe.experts.{}.w1.weight"]
    assert gates.info.shape == (2, FFN, HIDDEN)
    with pytest.raises(ConfigError, match=r"'blk.1.ffn_gate_exps.weight' in F16 and .* in F32"):
        read(tmp_path, edit_gate)


def test_other_architectures_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"architecture 'rwkv7', .*: choose one of .*llama, .*q"):
        read(tmp_path, arch="rwkv7")
    with pytest.raises(ConfigError, match="mixture of experts of this architecture, which is not"):
        read(tmp_path, _field("qwen2.expert_count", 8), arch="qwen2")


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (_field("tokenizer.ggml.pre", "new"), "in the way 'new', .* --tokenizer"),
        (_field("tokenizer.ggml.model", "rwkv"), "of the kind 'rwkv', .* --tokenizer"),
        (_field("tokenizer.ggml.merges", ["h e", "x"]), "a merge that is not of two tokens"),
        (_field("tokenizer.ggml.merges", ["none such"]), "cannot be built"),
        (_field("tokenizer.ggml.tokens", ["a", "a"]), "a token twice"),
        (_field("tokenizer.ggml.token_type", np.ones(3, int)), "3 of 'token_type'"),
        (_field("tokenizer.ggml.add_bos_token", np.ones(2, int)), "add_bos_token' of another type"),
        (_field("tokenizer.ggml.bos_token_id", np.ones(2, int)), "bos_token_id' of another type"),
    ],
)
def test_tokenizers_that_cannot_be_are_refused(tmp_path: Path, edit: Edit, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        GgufTokenizer(GgufFile(write(tmp_path / "model.gguf", edit)))


def test_sentencepiece_joins_best_scores_first(tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    scored = {"▁": -9, "a": -9, "b": -9, "c": -9, "ab": -2, "bc": -1, "abc": -3, "▁a": -4}

    def edit(fields: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        for key in ("pre", "merges", "padding_token_id", "add_bos_token"):
            fields.pop(f"tokenizer.ggml.{key}", None)
        fields["tokenizer.ggml.model"] = "llama"
        fields["tokenizer.ggml.tokens"] = [*pieces, *scored]
        fields["tokenizer.ggml.scores"] = np.array([0.0] * len(pieces) + [*scored.values()])
        types = [2, 3, 3] + [6] * 256 + [1] * len(scored)
        fields["tokenizer.ggml.token_type"] = np.array(types)

    made = GgufTokenizer(GgufFile(write(tmp_path / "model.gguf", edit))).tokenizer
    assert made.encode("abc").tokens == ["<s>", "▁", "abc"]
    assert made.encode("ab é", add_special_tokens=False).tokens == [
        *("▁", "ab", "▁", "<0xC3>", "<0xA9>")
    ]
    assert made.decode(made.encode("ab é</s>").ids) == "ab é"


def test_the_folder_is_what_the_host_reads(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "my model.gguf")
    made = folder.model_folder(path)
    assert made.parent == cache
    config = json.loads((made / "config.json").read_text())
    assert config["quantization_config"] == {"quant_method": "cpu_gguf", "file": str(path)}
    assert config["tie_word_embeddings"]  # an F32 table serves as output layer too
    tokenizer = AutoTokenizer.from_pretrained(made)
    assert tokenizer.tokenize("the 12") == ["t", "he", "Ġ", "1", "2"]
    assert tokenizer.convert_tokens_to_ids(SPECIAL) == [0, 1, 2]
    assert tokenizer.chat_template == "{{ messages[0]['content'] }}"
    assert {p.name for p in cache.iterdir()} == {made.name}


def test_the_folder_is_made_once_per_file(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "model.gguf")
    made = folder.model_folder(path)
    changed = (made / "config.json").stat().st_mtime_ns
    assert folder.model_folder(path) == made
    assert (made / "config.json").stat().st_mtime_ns == changed
    os.utime(path, ns=(1, 1))
    assert folder.model_folder(path) != made
    refused = write(tmp_path / "odd.gguf", _field("tokenizer.ggml.pre", "unheard"))
    with pytest.raises(ConfigError, match="unheard"):
        folder.model_folder(refused)
    without = folder.model_folder(refused, with_tokenizer=False)
    assert {p.name for p in without.iterdir()} == {"config.json", "generation_config.json"}


def test_every_token_has_a_row_in_the_table(tmp_path: Path, cache: Path) -> None:
    table = dict(gguf_weights())["token_embd.weight"][:-1]
    path = write(tmp_path / "model.gguf", _tensor("token_embd.weight", table))
    with pytest.raises(ConfigError, match=rf"{len(table) + 1} tokens, and a table of {len(table)}"):
        folder.model_folder(path)
    assert folder.model_folder(path, with_tokenizer=False).is_dir()


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME to a folder that can"):
        folder.model_folder(write(tmp_path / "model.gguf"))


def test_engine_arguments_keep_the_users_name(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(write(tmp_path / "model.gguf"))
    found = folder.prefer_folder({"model": path, "seed": 7})
    assert Path(found["model"]).parent == cache
    assert found["served_model_name"] == [path]
    assert (found["load_format"], found["seed"]) == ("cpu_gguf", 7)
    assert not caplog.records
    (tmp_path / "mmproj-F16.gguf").touch()
    named = folder.prefer_folder({"model": path, "served_model_name": ["me"]})
    [record] = caplog.records
    assert "pictures are not read by 'mmproj-F16.gguf'" in record.getMessage()
    assert named["served_model_name"] == ["me"]
    for other in ({"model": str(tmp_path / "cache")}, {"model": "someone/some-model"}, {}):
        assert folder.prefer_folder(other) is other
    ngram = {"model": path, "speculative_config": {"method": "ngram"}}
    assert folder.prefer_folder(ngram)["model"] == found["model"]
    with pytest.raises(ConfigError, match="that only draft tokens are not used"):
        folder.prefer_folder({"model": path, "speculative_config": {"method": "qwen3_next_mtp"}})
    with pytest.raises(ConfigError, match=r"missing\.gguf' cannot be read"):
        folder.prefer_folder({"model": str(tmp_path / "missing.gguf")})


def test_arguments_made_before_the_host_was_changed_name_the_folder_too(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with VLLM_TARGET_DEVICE=cpu."""
    monkeypatch.setattr(engine_arguments.preflight, "look", lambda *_: None)
    monkeypatch.setattr(engine_arguments.settings, "look", lambda _: None)
    path = str(write(tmp_path / "model.gguf"))
    fields = ("tokenizer", "served_model_name", "revision")
    empty = dict.fromkeys((*fields, "model_loader_extra_config", "speculative_config"))
    arguments = SimpleNamespace(model=path, load_format="auto", **empty)
    engine_arguments._after_a_look(lambda self: None)(arguments)
    assert Path(arguments.model).parent == cache
    assert (arguments.served_model_name, arguments.load_format) == ([path], "cpu_gguf")
