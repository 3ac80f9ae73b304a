"""Folders that a server writes: there, writable, and with room; and the memory that ranks share."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cpu_backend import envs
from cpu_backend.doctor.finding import Finding, note, ok, problem, told
from cpu_backend.errors import ConfigError
from cpu_backend.serving.preflight import LONGEST_PLACE

GIB = 1 << 30
ENOUGH = GIB  # in a folder for what is made or downloaded
SHARED = Path("/dev/shm")
SHARED_ENOUGH = 32 << 20  # half of what container engines give


@dataclass(frozen=True)
class Folder:
    """``use`` says what for, ``variable`` which one names another place.  ``free`` is None where
    neither the folder nor one above it can be seen."""

    use: str
    path: str
    variable: str
    writable: bool
    free: int | None


@dataclass(frozen=True)
class Facts:
    """``mistake``: why a folder has no place at all."""

    folders: tuple[Folder, ...]
    temporary: Folder | None
    shared: Folder
    mistake: str = ""


def read(environ: Mapping[str, str] = os.environ) -> Facts:
    try:
        caches = _caches(environ)
        mistake = ""
    except ConfigError as error:
        caches, mistake = (), str(error)
    try:
        temporary = _look("temporary files", Path(tempfile.gettempdir()), "TMPDIR")
    except FileNotFoundError:  # none of the usual ones can be written
        temporary = None
    return Facts(caches, temporary, _look("shared memory", SHARED, ""), mistake)


def _caches(environ: Mapping[str, str]) -> tuple[Folder, ...]:
    own = envs.user_cache()
    hub = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    home = Path(environ.get("HF_HOME") or own.parent / "huggingface")
    host = Path(environ.get("VLLM_CACHE_ROOT") or own.parent / "vllm")
    prompts = envs.disk_cache()
    return (
        _look("downloaded models", Path(hub) if hub else home / "hub", "HF_HOME"),
        _look("cache of vllm", host, "VLLM_CACHE_ROOT"),
        _look("cache of cpu_backend", own, "XDG_CACHE_HOME"),
        *([_look("prompts", prompts, envs.DISK_CACHE.name)] if prompts else []),
    )


def _look(use: str, path: Path, variable: str) -> Folder:
    """At the folder, or where it would be made."""
    there = path.expanduser()
    try:
        while not there.exists() and there != there.parent:
            there = there.parent
        writable = os.access(there, os.W_OK | os.X_OK) and there.is_dir()
        free = shutil.disk_usage(there).free
    except OSError:
        return Folder(use, str(path), variable, False, None)
    return Folder(use, str(path), variable, writable, free)


def judge(facts: Facts) -> Iterator[Finding]:
    if facts.mistake:
        yield told("disk", facts.mistake)
    for folder in facts.folders:
        yield _judge(folder)
    yield _temporary(facts.temporary)
    shared = facts.shared
    if not shared.writable:
        yield note("shm", f"{shared.path} cannot be written", "mount a tmpfs there for -tp and -pp")
    elif (shared.free or 0) < SHARED_ENOUGH:
        said = f"{shared.path} has {_size(shared)} free, which several ranks (-tp, -pp) may lack"
        yield note("shm", said, "docker run --shm-size 64m; Kubernetes: an emptyDir of Memory")
    else:
        yield ok("shm", f"{_size(shared)} free in {shared.path}")


def _judge(folder: Folder) -> Finding:
    where = f"the folder for the {folder.use}, {folder.path},"
    if not folder.writable:
        said = f"{where} cannot be written, so nothing is kept there"
        return note("disk", said, f"name another by {folder.variable}")
    if (folder.free or 0) < ENOUGH:
        said = f"{where} has only {_size(folder)} free"
        return note("disk", said, f"free some, or name another by {folder.variable}")
    return ok("disk", f"{folder.use}: {_size(folder)} free in {folder.path}")


def _temporary(folder: Folder | None) -> Finding:
    if folder is None or not folder.writable:
        said = "no folder for temporary files can be written, and the server's sockets lie there"
        return problem("disk", said, "set TMPDIR to one that can, or mount a tmpfs at /tmp")
    if len(folder.path) > LONGEST_PLACE:
        said = (
            f"TMPDIR is {len(folder.path)} characters long, and names of the server's sockets, "
            "which lie there, are limited"
        )
        return problem("disk", said, f"choose one of at most {LONGEST_PLACE}")
    return ok("disk", f"{folder.use}: {_size(folder)} free in {folder.path}")


def _size(folder: Folder) -> str:
    free = folder.free or 0
    return f"{free / GIB:.1f} GiB" if free >= GIB else f"{free >> 20} MiB"
