"""What published checkpoints bring as code of their own: each file is copied into a small model's
folder (``copied``), and needs nothing of this project there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path


def put(name: str, folder: Path) -> None:
    shutil.copy(Path(__file__).parent / f"{name}.py", folder)


def copied(name: str, made: str, folder: Path, class_of: str = "AutoProcessor") -> None:
    """Have ``folder`` say that the class ``made`` in ``name``.py is its processor."""
    put(name, folder)
    said = {"auto_map": {class_of: f"{name}.{made}"}, "processor_class": made}
    (folder / "processor_config.json").write_text(json.dumps(said))
