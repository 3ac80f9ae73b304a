"""The look at model and settings before an engine starts: each mistake is named, nothing else."""

from __future__ import annotations

import json
import os
import socket
import struct
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from vllm.envs import environment_variables

from cpu_backend.errors import ConfigError
from cpu_backend.serving import preflight

Change = Callable[[Path], None]


def arguments(model: Path, **changed: Any) -> SimpleNamespace:
    """The host's engine arguments as far as checks read them."""
    defaults = {
        "model": str(model),
        "model_weights": "",
        "hf_config_path": None,
        "config_format": "auto",
        "load_format": "auto",
        "tokenizer": None,
        "tokenizer_revision": None,
        "skip_tokenizer_init": False,
        "generation_config": "auto",
        "logits_processors": None,
    }
    return SimpleNamespace(**{**defaults, **changed})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder in which nothing is wrong."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": {}}) + "\n")
    (folder / "tokenizer_config.json").write_text("{}")
    tensors = {"a": torch.zeros(64, 3), "b": torch.zeros(0), "c": torch.zeros(5).bfloat16()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def said(look: Callable[[], None]) -> str:
    """The sentence of what ``look`` raises."""
    with pytest.raises(ConfigError) as caught:
        look()
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_a_whole_model_passes(model: Path) -> None:
    preflight.look(arguments(model), environment_variables)
    preflight.look_for("model", str(model))
    for format_of_weights in ("dummy", "cpu_gguf"):
        (model / "model.safetensors").unlink(missing_ok=True)
        preflight.look(arguments(model, load_format=format_of_weights), environment_variables)


def _text(name: str, text: str) -> Change:
    return lambda folder: (folder / name).write_text(text) and None


def _remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def _folder(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return change


def _cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)


def _grow(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"more")


def _bytes(content: bytes) -> Change:
    return lambda folder: (folder / "model.safetensors").write_bytes(content) and None


def _index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    names = {"a": "model-1.safetensors", "d": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def _header(value: Any) -> bytes:
    text = json.dumps(value).encode()
    return struct.pack("<Q", len(text)) + text


def _empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_empty, "is empty"),
        (_remove("config.json"), "has no config.json"),
        (_text("config.json", '{"a": '), "config.json' is no valid JSON"),
        (_text("config.json", "[]"), "config.json' is no JSON object"),
        (_text("config.json", '{"hidden_size": 0}'), "says that hidden_size is 0"),
        (_text("config.json", '{"rope_theta": [1e4, 0]}'), "rope_theta is 0, which is no positive"),
        (_text("config.json", '{"dtype": "foo"}'), "says that dtype is 'foo', which torch does"),
        (_text("config.json", '{"torch_dtype": "save"}'), "says that torch_dtype is 'save'"),
        (_text("config.json", '{"quantization_config": []}'), "quantization_config that is no"),
        (_remove("model.safetensors"), "has no weights"),
        (_cut, "is cut short"),
        (_grow, "is too long"),
        (_bytes(b""), "it has no whole header"),
        (_bytes(b"\xff" * 64), "it has no whole header"),
        (_bytes(struct.pack("<Q", 20) + b"x" * 20), "its header is no list of tensors"),
        (_bytes(_header([])), "its header is no list of tensors"),
        (_bytes(_header({"a": {"dtype": "F32"}})), "its header is no list of tensors"),
        (_bytes(b"version https://git-lfs.github.com/spec/v1\noid"), "a pointer of Git LFS"),
        (_index, "names the weight file 'model-2.safetensors', which is missing"),
        (_text("model.safetensors.index.json", "{}"), "has no table of weights"),
        (_text("model.safetensors.index.json", '{"weight_map": []}'), "has no table of weights"),
        (_text("model.safetensors.index.json", "[]"), "index.json' is no JSON object"),
        (_text("tokenizer.json", '{"version": '), "tokenizer.json' is no whole JSON object"),
        (_text("tokenizer.json", ""), "tokenizer.json' is no whole JSON object"),
        (_folder("tokenizer.json"), "tokenizer.json' cannot be read (Is a directory)"),
        (_folder("config.json"), "config.json' cannot be read (Is a directory)"),
        (_text("generation_config.json", "[]"), "generation_config.json' is no JSON object"),
        (_text("tokenizer_config.json", '{"a'), "tokenizer_config.json' is no valid JSON"),
    ],
)
def test_what_is_wrong_with_a_folder_is_named(model: Path, change: Change, words: str) -> None:
    change(model)
    assert words in said(lambda: preflight.look(arguments(model), environment_variables))


@pytest.mark.parametrize(
    "config",
    [
        {"hidden_size": 64, "dtype": "bfloat16", "quantization_config": None},
        {"torch_dtype": "torch.float16", "quantization_config": {"quant_method": "awq"}},
        {"dtype": "auto"},
    ],
)
def test_usual_configurations_pass(model: Path, config: dict[str, Any]) -> None:
    (model / "config.json").write_text(json.dumps(config))
    preflight.look(arguments(model), environment_variables)


def test_tokenizers_that_are_missing_are_named(model: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
    assert "has no tokenizer" in said(
        lambda: preflight.look(arguments(model), environment_variables)
    )
    preflight.look(arguments(model, skip_tokenizer_init=True), environment_variables)


@pytest.mark.parametrize("name", ["/no/such/model", "./model", "~/no/such/model", "a/b/c"])
def test_paths_that_do_not_exist_are_no_names(name: str) -> None:
    for kind in ("model", "tokenizer"):
        words = f"The {kind} folder '{name}' does not exist"
        assert words in said(lambda kind=kind: preflight.look_for(kind, name))  # type: ignore[misc]


def test_names_that_are_not_in_the_cache_are_told_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE=1" in said(lambda: preflight.look_for("model", "no-one/no-model"))
    preflight.look_for("model", "s3://bucket/model")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    preflight.look_for("model", "no-one/no-model")


def test_a_file_that_is_no_model_is_told(model: Path) -> None:
    assert "is no model" in said(
        lambda: preflight.look(arguments(model / "config.json"), environment_variables)
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"generation_config": "/no/such"}, "folder '/no/such' does not exist"),
        ({"logits_processors": ["foo:Bar"]}, "foo:Bar cannot be loaded (No module named 'foo')"),
        ({"logits_processors": ["json:Bar"]}, "has no attribute 'Bar'"),
    ],
)
def test_what_is_wrong_elsewhere_is_named(model: Path, changed: dict[str, Any], words: str) -> None:
    assert words in said(lambda: preflight.look(arguments(model, **changed), environment_variables))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("VLLM_WORKER_MULTIPROC_METHOD", "foo"),
        ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "soon"),
        ("CPU_BACKEND_HEALTH_SECONDS", "0"),
        ("CPU_BACKEND_HEALTH_SECONDS", "never"),
    ],
)
def test_variables_with_values_that_cannot_be_are_named(
    model: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert f"{variable}={value}" in said(
        lambda: preflight.look(arguments(model), environment_variables)
    )


@pytest.mark.parametrize(("name", "words"), [("none", "no folder that"), ("x" * 90, "too long")])
def test_places_where_no_sockets_can_lie_are_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    place = tmp_path / name
    if words == "too long":
        place.mkdir()
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(place))
    assert words in said(lambda: preflight.look(arguments(model), environment_variables))


def test_the_longest_place_for_sockets_is_one_that_the_system_takes(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = folder + "/" + "x" * (preflight.LONGEST_PLACE - len(folder) - 1)
        os.mkdir(place)
        assert preflight.sockets(place) is None
        socket.socket(socket.AF_UNIX).bind(f"{place}/{uuid.uuid4()}")
        os.mkdir(place + "x")
        assert preflight.sockets(place + "x")
        with pytest.raises(OSError, match="too long"):
            socket.socket(socket.AF_UNIX).bind(f"{place}x/{uuid.uuid4()}")


def test_an_address_that_another_server_has_is_refused() -> None:
    """Listening, or bound by a server that still loads its model, as the host binds it."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        for listens in (False, True):
            if listens:
                other.listen()
            assert f"port {port}" in said(lambda: _bind(port))
    _bind(port)


def test_addresses_that_are_none_are_refused() -> None:
    assert "port 70000" in said(lambda: _bind(70000))
    assert "no.such.host.invalid" in said(lambda: _bind(0, "no.such.host.invalid"))


def _bind(port: int, host: str = "127.0.0.1") -> None:
    with preflight.address(host, port), socket.socket() as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind((host, port))
