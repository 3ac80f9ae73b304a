"""Pages of prompts as files: what is read is what was written, or it is not there."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cpu_backend import envs
from cpu_backend.disk_cache import folder, identity
from cpu_backend.disk_cache.folder import PageFolder, Room
from cpu_backend.errors import ConfigError

KEY, OTHER = bytes(range(36)), bytes(range(1, 37))
PAGE = 1000


@pytest.fixture
def pages(tmp_path: Path) -> PageFolder:
    return PageFolder(tmp_path / "model", ranks=2)


def parts(count: int = 3, fill: int | None = None) -> list[memoryview]:
    """Of different content and length, or all ``fill``."""
    sizes = range(PAGE, PAGE + count)
    return [
        memoryview(bytearray([i % 251 if fill is None else fill]) * n) for i, n in enumerate(sizes)
    ]


def store(pages: PageFolder, key: bytes = KEY) -> None:
    for rank in range(pages.ranks):
        pages.write(key, rank, parts())


def is_read(pages: PageFolder, count: int = 3) -> bool:
    """Whether rank 0's part is there, and then it is what was stored."""
    into = parts(count, fill=255)
    found = pages.read(KEY, 0, into)
    assert into == (parts(count) if found else parts(count, fill=255))
    return found


def test_a_page_comes_back(pages: PageFolder) -> None:
    assert not pages.has(KEY)
    assert not is_read(pages)
    pages.write(KEY, 0, parts())
    assert not pages.has(KEY), "the other rank's part is missing"
    pages.write(KEY, 1, parts())
    assert pages.has(KEY)
    assert is_read(pages)
    assert not pages.has(OTHER)


def test_others_may_not_read_it(pages: PageFolder) -> None:
    pages.write(KEY, 0, parts())
    assert os.stat(pages.path(KEY, 0)).st_mode & 0o77 == 0


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[PAGE // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "a bit": flip,
    "cut": lambda path: os.truncate(path, PAGE),
    "its end cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "empty": lambda path: os.truncate(path, 0),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "gone": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_not_read(pages: PageFolder, damage: str) -> None:
    store(pages)
    DAMAGE[damage](Path(pages.path(KEY, 0)))
    assert not is_read(pages)


def test_pages_of_another_size_are_not_read(pages: PageFolder) -> None:
    store(pages)
    assert not is_read(pages, 2)
    assert not is_read(pages, 4)


def _write_too_much(pages: PageFolder) -> None:
    """A disk that is full in the middle of a file."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE, PAGE))
    with pytest.raises(OSError, match=r"cut short|too large"):
        pages.write(KEY, 0, parts())


def test_a_full_disk_leaves_nothing_behind(pages: PageFolder) -> None:
    child = multiprocessing.get_context("fork").Process(target=_write_too_much, args=(pages,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert not pages.has(KEY)
    assert [path for path in Path(pages.folder).rglob("*") if path.is_file()] == []


# ---- room ----------------------------------------------------------------------------------------


def aged(pages: PageFolder, count: int) -> list[bytes]:
    """Keys of stored pages from the oldest to the newest."""
    keys = [bytes([i]) * 36 for i in range(count)]
    for age, key in enumerate(reversed(keys)):
        store(pages, key)
        for rank in range(pages.ranks):
            os.utime(pages.path(key, rank), (0, 1e9 - 60 * age))
    return keys


def test_the_oldest_go_first_and_use_keeps_young(pages: PageFolder, tmp_path: Path) -> None:
    other = PageFolder(tmp_path / "another-model", ranks=2)
    keys = aged(pages, 10)
    store(other, OTHER)
    pages.touch(keys[0])
    size = os.stat(pages.path(keys[0], 0)).st_size
    room = Room(tmp_path, 16 * size)
    room.clean()
    assert room.limit == 16 * size
    left = [key for key in keys if pages.has(key)]
    assert keys[0] in left
    assert left == [keys[0], *keys[-(len(left) - 1) :]]
    assert 0.8 * room.limit < size * 2 * (len(left) + 1) <= folder.KEPT * room.limit
    assert other.has(OTHER)


def test_room_is_made_when_it_is_needed(pages: PageFolder, tmp_path: Path) -> None:
    keys = aged(pages, 4)
    size = 2 * os.stat(pages.path(keys[0], 0)).st_size
    room = Room(tmp_path, 4 * size)
    room.clean()
    assert all(map(pages.has, keys))
    store(pages, OTHER)
    room.grew(size)
    assert room._cleaner is not None
    room._cleaner.join()
    assert [pages.has(key) for key in (*keys, OTHER)] == [False, False, True, True, True]


def test_half_of_the_disk_is_taken_at_most(pages: PageFolder, tmp_path: Path) -> None:
    free = shutil.disk_usage(pages.folder if os.path.isdir(pages.folder) else tmp_path).free
    room, greedy = Room(tmp_path, None), Room(tmp_path, 10 * free)
    for each in (room, greedy):
        each.clean()
    assert room.limit == pytest.approx(free / 2, rel=0.1)
    assert greedy.limit == pytest.approx(folder.KEPT * free, rel=0.1)


def test_what_was_never_finished_goes_and_what_is_being_written_stays(
    pages: PageFolder, tmp_path: Path
) -> None:
    store(pages)
    old, young, strange = (
        Path(pages.path(KEY, 0) + name) for name in (".1.2.part", ".3.4.part", ".txt")
    )
    for path in (old, young, strange):
        path.write_bytes(b"x")
    os.utime(old, (0, old.stat().st_mtime - 2 * folder.STALE_SECONDS))
    Room(tmp_path, 1).clean()
    assert not old.exists()
    assert young.exists()
    assert strange.exists(), "a file of nobody here"
    assert not pages.has(KEY)


# ---- identity ------------------------------------------------------------------------------------


def config(model: Path, **changed: Any) -> Any:
    """What ``identity`` asks of the host's VllmConfig."""
    hf_config = SimpleNamespace(to_json_string=lambda use_diff: '{"hidden_size": 64}')
    values: dict[str, Any] = {
        "model_config": SimpleNamespace(
            model=str(model),
            revision=None,
            seed=0,
            hf_config=hf_config,
            architecture="Llama",
            multimodal_config=None,
            max_model_len=512,
            quantization=None,
            dtype="bfloat16",
        ),
        "cache_config": SimpleNamespace(
            cache_dtype="auto",
            kv_cache_dtype_skip_layers=[],
            block_size=128,
            mamba_block_size=None,
            mamba_cache_dtype="auto",
            prefix_caching_hash_algo="sha256",
        ),
        "parallel_config": SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1, enable_expert_parallel=False
        ),
        "load_config": SimpleNamespace(load_format="auto", download_dir=None),
        "speculative_config": None,
    }
    for name, value in changed.items():
        holder = next(v for v in values.values() if hasattr(v, name))
        setattr(holder, name, value)
    return SimpleNamespace(**values)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model:7"
    path.mkdir()
    (path / "model.safetensors").write_bytes(b"weights")
    return path


def named(config: Any) -> tuple[str, str]:
    return identity.folder_name(config, identity.settings(config))


def test_the_same_model_has_the_same_folder(model: Path) -> None:
    name, about = named(config(model))
    assert name.startswith("model_7-")
    assert (name, about) == named(config(model))
    assert '"hidden_size": 64' in about


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "float32"},
        {"cache_dtype": "fp8"},
        {"block_size": 64},
        {"tensor_parallel_size": 2},
        {"quantization": "cpu_int4"},
        {"max_model_len": 1024},
        {"multimodal_config": "{'max_pixels': 1}"},
        {"prefix_caching_hash_algo": "sha256_cbor"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_pages_depend_on_is_part_of_it(model: Path, changed: dict[str, Any]) -> None:
    assert named(config(model, **changed)) != named(config(model))


def test_so_are_weights_and_settings(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = named(config(model))
    weights = model / "model.safetensors"
    state = weights.stat()
    weights.write_bytes(b"WEIGHTS")  # of the same length
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns + 1_000_000))
    other = named(config(model))
    assert other != before
    monkeypatch.setenv(envs.ACTIVATIONS.name, "int8")
    assert named(config(model)) != other


def test_weights_that_are_nowhere_are_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"which weights .* name its folder"):
        named(config(model / "missing"))
