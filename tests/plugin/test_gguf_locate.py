"""Which GGUF file a name means: a path, a folder, or REPOSITORY:TYPE in the cache of downloads."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from cpu_backend.errors import ConfigError
from cpu_backend.gguf import locate


def put(folder: Path, *names: str) -> list[Path]:
    paths = [folder / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
    return paths


def test_a_file_is_meant_by_its_path(tmp_path: Path) -> None:
    [path] = put(tmp_path, "a.gguf")
    assert locate.find(str(path)) == path
    assert locate.find("someone/some-model") is None


def test_a_folder_means_its_only_model(tmp_path: Path) -> None:
    parts = [f"b-0000{n}-of-00002.gguf" for n in (1, 2)]
    first, *_ = put(tmp_path, *parts, "mmproj-b.gguf")
    assert locate.find(str(tmp_path)) == first
    put(tmp_path, "c.gguf")
    with pytest.raises(ConfigError, match=r"holds 2 GGUF models \(b-00001.*, c.gguf\): name one"):
        locate.find(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert locate.find(str(tmp_path)) is None


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the repository of/some-GGUF, as downloads leave it."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "models--of--some-GGUF"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    return folder / "snapshots" / ("0" * 40)


def test_a_type_on_the_hub(snapshot: Path) -> None:
    one, other, part, _ = put(
        snapshot,
        *("some-Q4_K_M.gguf", "some-Q8_0.gguf"),
        *(f"BF16/some-BF16-0000{n}-of-00002.gguf" for n in (1, 2)),
    )
    assert locate.find("of/some-GGUF:Q4_K_M") == one
    assert locate.find("of/some-GGUF:q8_0") == other
    assert locate.find("of/some-GGUF:BF16") == part
    with pytest.raises(ConfigError, match="no GGUF file of the type Q4_K: choose one that it has"):
        locate.find("of/some-GGUF:Q4_K")
    [longer] = put(snapshot, "some-UD-Q8_0.gguf")
    assert locate.find("of/some-GGUF:Q8_0") == other
    assert locate.find("of/some-GGUF:UD-Q8_0") == longer
    put(snapshot, "more-Q8_0.gguf")
    with pytest.raises(ConfigError, match=r"has 2 GGUF models \(more-Q8_0.*: name the file"):
        locate.find("of/some-GGUF:Q8_0")


def test_projectors_lie_beside_the_model_or_in_its_repository(
    snapshot: Path, tmp_path: Path
) -> None:
    part, near, projector = put(
        snapshot, "BF16/some-BF16.gguf", "some-Q8_0.gguf", "mmproj-some-F16.gguf"
    )
    assert locate.projectors(part) == locate.projectors(near) == [projector]
    assert locate.find("of/some-GGUF:BF16") == part
    alone, beside, _ = put(tmp_path, "a/model.gguf", "a/MMPROJ-model.gguf", "b/mmproj.gguf")
    assert locate.projectors(alone) == [beside]


def test_what_cannot_be_downloaded_is_one_sentence(snapshot: Path) -> None:
    with pytest.raises(ConfigError, match="of 'of/other-GGUF' cannot be downloaded") as error:
        locate.find("of/other-GGUF:Q8_0")
    assert "\n" not in str(error.value)
