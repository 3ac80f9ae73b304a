# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Contributors to vllm-cpu-backend
"""What every step of making the demo model uses: its error, its messages, checksums."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any


class DemoModelError(Exception):
    """Why the demo model cannot be made, as one sentence that names the way out."""


def say(text: str) -> None:
    print(f"demo model: {text}", file=sys.stderr, flush=True)


def progress(**options: Any) -> Any:
    from tqdm import tqdm

    # disable=None: silent unless on a terminal.
    return tqdm(disable=None, file=sys.stderr, leave=False, **options)


def sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
