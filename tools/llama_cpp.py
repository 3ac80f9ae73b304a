"""llama.cpp's own converter: ``python -m tools.llama_cpp CHECKPOINT OUT [TYPE]`` makes a GGUF file.

The sources come with the sdist of llama-cpp-python on the index, once, into the user's cache.  Only
the converter is used, which needs torch and transformers; nothing is compiled.  TYPE is one of
gguf.LlamaFileType, ALL_F32 if it is not given.  The file has no vocabulary: the converter takes the
published tokenizers alone.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from cpu_backend.envs import user_cache

VERSION = "0.3.36"  # of llama-cpp-python
WANTED = ("conversion/", "gguf-py/", "models/ggml-vocab-")


def sources() -> Path:
    """The folder of llama.cpp's sources, fetched if they are not there."""
    target = user_cache() / f"llama_cpp-{VERSION}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", name]
        package = "llama-cpp-python"
        subprocess.run([*command, "--no-binary", package, f"{package}=={VERSION}"], check=True)
        [archive] = folder.glob("*.tar.gz")
        with tarfile.open(archive) as content:
            prefix = f"{archive.name.removesuffix('.tar.gz')}/vendor/llama.cpp/"
            starts = tuple(prefix + wanted for wanted in WANTED)
            members = [m for m in content.getmembers() if m.name.startswith(starts)]
            content.extractall(folder / "unpacked", members, filter="data")
        (folder / "unpacked" / prefix).rename(target)
    return target


def convert(checkpoint: Path, out: Path, kind: str = "ALL_F32") -> None:
    """Write the GGUF file ``out``, in a process of its own: its ``gguf`` is another than ours."""
    command = [sys.executable, "-m", "tools.llama_cpp", str(checkpoint), str(out), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"llama.cpp cannot convert this: {done.stderr.splitlines()[-1:]}")


def _convert(checkpoint: Path, out: Path, kind: str) -> None:
    root = sources()
    sys.path[:0] = [str(root), str(root / "gguf-py")]
    import gguf
    import torch
    from conversion import get_model_architecture, get_model_class
    from conversion.base import ModelBase, ModelType

    def no_vocabulary(model: Any) -> None:
        model.gguf_writer.add_tokenizer_model("no_vocab")

    architecture = get_model_architecture(ModelBase.load_hparams(checkpoint, False), ModelType.TEXT)
    made = get_model_class(architecture, mmproj=False)
    for ancestor in made.__mro__:
        if "set_vocab" in vars(ancestor):
            ancestor.set_vocab = no_vocabulary
    with torch.inference_mode():
        made.no_mtp = True  # layers that only draft: small models have none
        made(checkpoint, getattr(gguf.LlamaFileType, kind), out, eager=True).write()


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:] or ["ALL_F32"])
