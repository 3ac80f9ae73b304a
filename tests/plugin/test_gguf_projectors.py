"""Files by which a model in a GGUF file reads pictures: which one is taken, and what it says.
Small models that see are compared with ``transformers`` in tests/zoo/gguf_pictures.py."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from cpu_backend.errors import ConfigError
from cpu_backend.gguf import folder
from cpu_backend.gguf.architectures import glm as glm_text
from cpu_backend.gguf.checkpoint import Checkpoint, Pictures
from cpu_backend.gguf.projectors import base, gemma, gemma4, llava
from cpu_backend.gguf.reader import GgufFile
from cpu_backend.gguf.tokenizer import GgufTokenizer
from tests.plugin.gguf_samples import FFN, HEADS, HIDDEN, write_gguf

WIDTH, PATCH, SIDE = 32, 4, 16
MARKS = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]


def tensors() -> dict[str, np.ndarray]:
    """Of a tower with one layer, exact in fp32."""
    shapes: dict[str, tuple[int, ...]] = {
        "v.patch_embd": (WIDTH, 3, PATCH, PATCH),
        "v.post_ln": (WIDTH,),
        "v.blk.0.ln1": (WIDTH,),
        "v.blk.0.ln2": (WIDTH,),
        "v.blk.0.ffn_up": (FFN, WIDTH),
        "v.blk.0.ffn_down": (WIDTH, FFN),
        **{f"v.blk.0.attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "out")},
    }
    found = {f"{name}.weight": shape for name, shape in shapes.items()}
    found |= {f"{name}.bias": shape[:1] for name, shape in shapes.items()}
    found["v.position_embd.weight"] = ((SIDE // PATCH) ** 2, WIDTH)
    found["mm.model.fc.weight"] = (HIDDEN, 4 * WIDTH)
    random_state = np.random.default_rng(1)
    return {n: random_state.standard_normal(s, np.float32) for n, s in found.items()}


def write_projector(path: Path, text_width: int = HIDDEN, **changes: Any) -> Path:
    fields: dict[str, Any] = {
        "projector_type": "idefics3",
        "has_vision_encoder": True,
        "use_gelu": True,
        "vision.projection_dim": text_width,
        "vision.image_size": SIDE,
        "vision.patch_size": PATCH,
        "vision.embedding_length": WIDTH,
        "vision.feed_forward_length": FFN,
        "vision.block_count": 1,
        "vision.attention.head_count": HEADS,
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.projector.scale_factor": 2,
        "vision.image_mean": [0.5, 0.25, 0.125],
        "vision.image_std": [0.5, 0.5, 0.5],
    }
    writer = gguf.GGUFWriter(path, "clip")
    adds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    adds |= {str: writer.add_string, list: writer.add_array}
    for key, value in {**fields, **changes}.items():
        adds[type(value)](f"clip.{key}", value)
    for name, weight in tensors().items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def with_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some bytes of the vocabulary become the tokens of pictures."""
    read = GgufFile._read_all

    def read_and_mark(self: GgufFile) -> None:
        read(self)
        if tokens := self.metadata.get("tokenizer.ggml.tokens"):
            tokens[3 : 3 + len(MARKS)] = MARKS

    monkeypatch.setattr(GgufFile, "_read_all", read_and_mark)


def said(changed: dict[str, Any], name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((Path(changed["model"]) / name).read_text())
    return result


def test_the_whole_model_is_described(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_marks(monkeypatch)
    file = write_projector(model.with_name("mmproj-F32.gguf"))
    with caplog.at_level(logging.INFO):
        changed = folder.prefer_folder({"model": str(model)})
    assert "pictures are read by 'mmproj-F32.gguf'" in caplog.text
    config = said(changed, "config.json")
    assert config["architectures"] == ["Idefics3ForConditionalGeneration"]
    assert config["quantization_config"]["pictures"] == str(file)
    assert config["image_token_id"] == 3
    assert config["text_config"]["hidden_size"] == HIDDEN
    assert config["vision_config"]["num_attention_heads"] == HEADS
    assert (config["scale_factor"], config["eos_token_id"]) == (2, 2)
    processor = said(changed, "processor_config.json")
    assert processor["image_seq_len"] == 4
    assert processor["image_processor"]["image_mean"] == [0.5, 0.25, 0.125]
    assert said(changed, "tokenizer_config.json")["image_token"] == "<image>"


def test_tensors_are_those_of_the_checkpoint(model: Path) -> None:
    file = write_projector(model.with_name("mmproj-F32.gguf"))
    pictures = Pictures(GgufFile(file), Checkpoint(GgufFile(model)))
    assert len(pictures.entries) == len(tensors())
    for there, here in {
        "model.vision_model.encoder.layers.0.self_attn.q_proj.weight": "v.blk.0.attn_q.weight",
        "model.vision_model.embeddings.patch_embedding.weight": "v.patch_embd.weight",
        "model.connector.modality_projection.proj.weight": "mm.model.fc.weight",
    }.items():
        assert torch.equal(
            pictures.values(pictures.entries[there]), torch.from_numpy(tensors()[here])
        )
    projector = pictures.projector
    assert projector.weight_of_text("model.norm.weight") == "model.text_model.norm.weight"
    assert projector.weight_of_text("lm_head.weight") == "lm_head.weight"
    assert projector.module_of_text("model.text_model.layers.0.mlp") == "model.layers.0.mlp"
    assert projector.module_of_text("model.vision_model.encoder") == ""


def test_the_file_that_fits_is_taken_or_the_named_one(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_marks(monkeypatch)
    other = write_projector(model.with_name("mmproj-other.gguf"), text_width=HIDDEN + 1)
    broken = model.with_name("mmproj-broken.gguf")
    broken.write_bytes(b"GGUF")
    alone = folder.prefer_folder({"model": str(model)})
    assert "vision_config" not in said(alone, "config.json")
    assert "'mmproj-other.gguf'" in caplog.text
    assert "makes hidden states of 65 channels, and its text has 64" in caplog.text
    assert "'mmproj-broken.gguf' is too short" in caplog.text
    named = {"model": str(model), "model_loader_extra_config": {"mmproj": str(other), "a": 1}}
    with pytest.raises(ConfigError, match="makes hidden states of 65 channels"):
        folder.prefer_folder(named)
    away = write_projector(model.parent / "away.gguf")
    named["model_loader_extra_config"] = {"mmproj": str(away), "a": 1}
    changed = folder.prefer_folder(named)
    assert said(changed, "config.json")["quantization_config"]["pictures"] == str(away)
    assert changed["model_loader_extra_config"] == {"a": 1}
    write_projector(model.with_name("mmproj-F32.gguf"))
    none = folder.prefer_folder({"model": str(model), "model_loader_extra_config": {"mmproj": ""}})
    assert none["model"] == alone["model"]


def test_what_is_missing_for_pictures_leaves_the_text(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_projector(model.with_name("mmproj-F32.gguf"))
    changed = folder.prefer_folder({"model": str(model)})
    assert "vision_config" not in said(changed, "config.json")
    assert "needs the token '<image>', which its text has not" in caplog.text
    named = {"model": str(model), "model_loader_extra_config": {"mmproj": str(file)}}
    with pytest.raises(ConfigError, match="needs the token '<image>'"):
        folder.prefer_folder(named)
    with_marks(monkeypatch)
    changed = folder.prefer_folder({"model": str(model), "tokenizer": "someone's"})
    assert "vision_config" not in said(changed, "config.json")
    assert "It needs the model's own tokenizer: leave out --tokenizer." in caplog.text
    monkeypatch.setattr(
        "cpu_backend.gguf.projectors.smolvlm.Idefics3.needs", ("a_package_of_nobody",)
    )
    changed = folder.prefer_folder({"model": str(model)})
    assert "vision_config" not in said(changed, "config.json")
    assert "needs the Python package a_package_of_nobody" in caplog.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"projector_type": "of nobody"},
            "kind 'of nobody', which is not supported: choose",
        ),
        ({"projector_type": "gemma3"}, "kind 'gemma3', and its text is of 'llama'"),
        ({"use_gelu": False}, "another activation than SigLIP"),
        ({"vision.block_count": 1 << 20}, "1048576 layers and"),
        ({"vision.block_count": 2}, "no tensor 'v.blk.1.ln1.weight'"),
        ({"vision.projector.scale_factor": 3}, "tensor 'mm.model.fc.weight' of shape"),
        ({"vision.image_std": [0.5, 0.0, 0.5]}, "vision.image_std"),
        ({"vision.feature_layer": 3}, "has the field 'clip.vision.feature_layer'"),
        ({"has_audio_encoder": True}, "a tower of sounds"),
        ({"has_vision_encoder": False}, "no tower of pictures"),
        ({"projector_type": "qwen2a"}, "kind 'qwen2a', and its text is of 'llama'"),
    ],
)
def test_other_files_are_refused_by_name(model: Path, changes: dict[str, Any], words: str) -> None:
    file = write_projector(model.with_name("mmproj.gguf"), **changes)
    with pytest.raises(ConfigError) as error:
        Pictures(GgufFile(file), Checkpoint(GgufFile(model)))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_token_without_meaning_is_renamed_where_one_is_missing() -> None:
    gemma3 = object.__new__(gemma.Gemma3)  # which has read no file
    others = ["<start_of_image>", "<end_of_image>", "<unused3>", "<unused4>"]
    ids = {token: number for number, token in enumerate(others)}
    assert gemma3.renamed(ids) == {3: "<image_soft_token>"}
    ids["<image_soft_token>"] = 9
    assert gemma3.renamed(ids) == {}
    assert gemma3.numbers(ids)["image_token_index"] == 9


def test_a_renamed_token_is_found_in_text(model: Path) -> None:
    file = GgufFile(model)
    unknown = file.metadata["tokenizer.ggml.tokens"][7]
    llava15 = object.__new__(llava.Llava)
    llava15.unused = {"image_token": ("<not there>", unknown)}
    tokenizer = GgufTokenizer(file, llava15.renamed)
    ids = tokenizer.tokenizer.encode("a<image>b", add_special_tokens=False).ids
    assert ids == [tokenizer.vocabulary.ids[token] for token in ("a", "<image>", "b")]
    assert ids[1] == 7


def test_old_files_have_two_matrices_under_each_others_names(model: Path) -> None:
    file = GgufFile(write_projector(model.with_name("mmproj.gguf")))
    for end in ("weight", "bias"):
        names = [f"v.blk.0.ffn_{part}.{end}" for part in ("up", "down")]
        up, down = (file.tensors.pop(name) for name in names)
        file.tensors |= {names[0]: down, names[1]: up}
    pictures = Pictures(file, Checkpoint(GgufFile(model)))
    first = pictures.entries["model.vision_model.encoder.layers.0.mlp.fc1.weight"]
    assert torch.equal(pictures.values(first), torch.from_numpy(tensors()["v.blk.0.ffn_up.weight"]))


def test_channels_that_turn_together_lie_beside_each_other() -> None:
    order = glm_text.interleaving(head_dim=8, rotated=6)
    assert order(16).tolist() == [0, 3, 1, 4, 2, 5, 6, 7, 8, 11, 9, 12, 10, 13, 14, 15]


def test_numbers_are_changed_back() -> None:
    scale = torch.linspace(-8, 8, 33, dtype=torch.float64)
    softened = torch.nn.functional.softplus(scale)
    torch.testing.assert_close(gemma4.before_softplus(softened), scale)
    pixels = torch.arange(2 * 3 * 4 * 4.0).view(2, 3, 4, 4)
    rows = base.patches_last(pixels)
    assert torch.equal(rows.view(2, 4, 4, 3).permute(0, 3, 1, 2), pixels)
