"""Which GGUF file a model's name means: the file, the only model in a folder, or one on the hub."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from cpu_backend.errors import ConfigError
from cpu_backend.gguf.reader import is_gguf

# As llama.cpp and others write it: REPOSITORY:TYPE.
ON_HUB = re.compile(r"([\w.-]+/[\w.-]+):([\w.-]+)")
PROJECTOR = "mmproj"  # in the names of files by which pictures are read
# Repositories have one or more of them; where there is none in fp16, there may be one in bf16.
IN_HALF, IN_BF16 = "*mmproj*[!bB][fF]16*.gguf", "*mmproj*[bB][fF]16*.gguf"
LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}$")


def find(model: str, revision: str | None = None) -> Path | None:
    """The file of which ``model`` is the name, or None for a model of another kind.

    Raises ConfigError where it cannot be had, or where there are several.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if (path / "config.json").exists() or not (found := _models(path)):
            return None
        return _only(found, f"The model folder '{path}' holds", "name one of them")
    if is_gguf(path):
        return path
    on_hub = ON_HUB.fullmatch(model)
    return _on_hub(on_hub[1], on_hub[2], revision) if on_hub else None


def projectors(file: Path) -> list[Path]:
    """The files beside a model, or in its repository, by which llama.cpp reads pictures and sounds
    for one."""
    home = next((up for up in file.parents if up.parent.name == "snapshots"), file.parent)
    beside = {*file.parent.glob("*.gguf"), *(home.rglob("*.gguf") if home != file.parent else ())}
    return sorted(path for path in beside if PROJECTOR in path.name.lower() and path != file)


def _models(folder: Path, kind: str = "") -> list[Path]:
    """The files below ``folder`` that are a model, or the first part of one, of the type ``kind``;
    projections of pictures are none."""
    of_kind = re.compile(rf"(^|[-._/]){re.escape(kind)}([-./]|$)", re.IGNORECASE)
    return sorted(
        path
        for path in folder.rglob("*.gguf")
        if not LATER_PART.search(path.stem)
        and PROJECTOR not in path.name.lower()
        and (not kind or of_kind.search(str(path.relative_to(folder).with_suffix(""))))
    )


def _only(found: list[Path], holder: str, way_out: str) -> Path:
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ConfigError(f"{holder} {len(found)} GGUF models ({names}): {way_out}.")
    return found[0]


def _on_hub(repository: str, kind: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    patterns = [f"*{word}*.gguf" for word in dict.fromkeys((kind, kind.upper(), kind.lower()))]
    fetch = functools.partial(snapshot_download, repository, revision=revision)
    try:
        folder = fetch(allow_patterns=[*patterns, IN_HALF])
        if not any(Path(folder).rglob(f"*{PROJECTOR}*")):
            fetch(allow_patterns=[IN_BF16])
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".:")
        raise ConfigError(
            f"The GGUF file {kind} of '{repository}' cannot be downloaded ({reason}): check name "
            "and network, or name a file."
        ) from error
    found = _models(Path(folder), kind)
    if not found:
        raise ConfigError(
            f"'{repository}' has no GGUF file of the type {kind}: choose one that it has."
        )
    # NAME-UD-Q8_0 is meant by UD-Q8_0.
    shortest = min(len(path.name) for path in found)
    found = [path for path in found if len(path.name) == shortest]
    return _only(found, f"'{repository}' has", "name the file")
