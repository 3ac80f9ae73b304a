"""llama.cpp's own converter: ``python -m tools.llama_cpp CHECKPOINT OUT [TYPE [PART]]`` makes a
GGUF file.

The sources come with the sdist of llama-cpp-python on the index, once, into the user's cache.  Only
the converter is used, which needs torch and transformers; nothing is compiled.  TYPE is F32, F16,
BF16, Q8_0 or another type that the package ``gguf`` can quantize to; matrices whose rows are no
whole blocks of it stay in 16 bits.  PART is "text"; "drafting", which is that with layers that only
draft tokens; "said", which is that with a vocabulary;
"mmproj", what a model makes of pictures; or "clip", the same of LLaVA, by the older scripts that
are still the way there.  The converter knows published tokenizers only, so the vocabulary is
written here, of a tokenizer of bytes.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cpu_backend.envs import user_cache

VERSION = "0.3.36"  # of llama-cpp-python
LEGACY = "tools/mtmd/legacy-models"
WANTED = ("conversion/", "gguf-py/", "models/ggml-vocab-", f"{LEGACY}/")
FETCHED = 2  # raise it with what is wanted
WRITTEN = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "BF16": "MOSTLY_BF16", "Q8_0": "MOSTLY_Q8_0"}


# Whose text is written as that of another.
SAME_TEXTS = {"LlavaNextForConditionalGeneration": "LlavaForConditionalGeneration"}


@functools.cache
def sources() -> Path:
    """The folder of llama.cpp's sources, fetched if they are not there; of a process the same,
    whatever becomes of the user's cache."""
    target = user_cache() / f"llama_cpp-{VERSION}-{FETCHED}"
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


def command(
    checkpoint: Path, out: Path, kind: str, python: Path | str = sys.executable
) -> list[str]:
    """What writes the GGUF file ``out``, in a process of its own: the ``gguf`` of these sources is
    another than the installed one.  python: has this project, torch and transformers."""
    return [str(python), str(Path(__file__).resolve()), str(checkpoint), str(out), kind]


def convert(checkpoint: Path, out: Path, kind: str = "F32", part: str = "text") -> None:
    """Write the GGUF file ``out``; RuntimeError where llama.cpp does not know the model."""
    making = [*command(checkpoint, out, kind), part]
    cache = {"XDG_CACHE_HOME": str(sources().parents[1])}
    made = subprocess.run(
        making, capture_output=True, text=True, check=False, env=os.environ | cache
    )
    if made.returncode:
        raise RuntimeError(f"llama.cpp cannot convert this: {made.stderr.splitlines()[-1:]}")


def _descendants(parent: Any) -> Iterator[Any]:
    for child in parent.__subclasses__():
        yield child
        yield from _descendants(child)


def _convert(checkpoint: Path, out: Path, kind: str = "F32", part: str = "text") -> None:
    root = sources()
    # In place of this script's folder, whose modules have names of packages.
    sys.path[:1] = [str(root), str(root / "gguf-py")]
    if part == "clip":
        _convert_clip(root / LEGACY, checkpoint, out)
        return
    import gguf
    import torch
    from conversion import get_model_architecture, get_model_class
    from conversion.base import ModelBase, ModelType

    def no_vocabulary(model: Any) -> None:
        writer = model.gguf_writer
        if part == "said":
            _add_vocabulary(writer, checkpoint, gguf.TokenType)
            return
        writer.add_tokenizer_model("no_vocab")
        key = gguf.Keys.LLM.VOCAB_SIZE.format(arch=writer.arch)
        if not any(key in part for part in writer.kv_data):  # llama.cpp asks for it then
            writer.add_vocab_size(model.hparams["vocab_size"])

    pictures = part == "mmproj"
    model_type = ModelType.MMPROJ if pictures else ModelType.TEXT
    architecture = get_model_architecture(ModelBase.load_hparams(checkpoint, False), model_type)
    architecture = SAME_TEXTS.get(architecture, architecture)
    model_class = get_model_class(architecture, mmproj=pictures)
    for each in _descendants(ModelBase):  # a class may leave the work to another
        if "set_vocab" in vars(each):
            each.set_vocab = no_vocabulary
    model_class.no_mtp = part != "drafting"
    with torch.inference_mode():
        written = gguf.LlamaFileType[WRITTEN.get(kind, "MOSTLY_BF16")]
        model = model_class(checkpoint, written, out, eager=kind not in WRITTEN)
        if kind not in WRITTEN:
            _quantize_bf16(model.gguf_writer, gguf, gguf.GGMLQuantizationType[kind])
        model.write()


def _convert_clip(scripts: Path, checkpoint: Path, out: Path) -> None:
    """The way that llama.cpp describes for LLaVA: the projector and the tower are cut out of a copy
    of the checkpoint, whose config is that of the tower with what else the script reads."""
    import shutil

    import torch
    import transformers

    with tempfile.TemporaryDirectory(dir=out.parent) as name:
        folder = Path(name)
        shutil.copy(checkpoint / "model.safetensors", folder)
        _run(scripts / "llava_surgery_v2.py", "-C", "-m", name)
        said = json.loads((checkpoint / "config.json").read_text())
        tower = said["vision_config"] | {"vision_feature_layer": said["vision_feature_layer"]}
        if "image_grid_pinpoints" in said:
            tower |= {
                "image_aspect_ratio": "anyres",
                "image_crop_resolution": 224,
                "image_grid_pinpoints": said["image_grid_pinpoints"],
                "image_split_resolution": 224,
                "mm_patch_merge_type": "spatial_unpad",
                "mm_projector_type": "mlp2x_gelu",
            }
        (folder / "config.json").write_text(json.dumps(tower))

        class Tower(torch.nn.Module):
            """As transformers 4 had it: within another module."""

            def __init__(self) -> None:
                super().__init__()
                config = transformers.CLIPVisionConfig(**said["vision_config"])
                self.vision_model = transformers.CLIPVisionModel(config)
                self.load_state_dict(torch.load(folder / "llava.clip"))

        transformers.CLIPVisionModel.from_pretrained = lambda _: Tower()
        projector = str(folder / "llava.projector")
        options = ["--use-f32", "--clip-model-is-vision", "--llava-projector", projector]
        _run(scripts / "convert_image_encoder_to_gguf.py", "-m", name, *options)
        os.replace(folder / "mmproj-model-f32.gguf", out)


def _run(script: Path, *arguments: str) -> None:
    """A script of theirs, in this process."""
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


def _add_vocabulary(writer: Any, checkpoint: Path, types: Any) -> None:
    """That of tokenizer.json, which is one of bytes."""
    said = json.loads((checkpoint / "tokenizer.json").read_text())
    tokens = said["model"]["vocab"]
    special = {token["content"] for token in said["added_tokens"] if token["special"]}
    names = sorted(tokens, key=tokens.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types([types.CONTROL if n in special else types.NORMAL for n in names])
    named = json.loads((checkpoint / "tokenizer_config.json").read_text())
    for role in ("bos", "eos", "pad", "unk"):
        getattr(writer, f"add_{role}_token_id")(tokens[named[f"{role}_token"]])
    writer.add_token_merges([" ".join(merge) for merge in said["model"]["merges"]])


def _quantize_bf16(writer: Any, gguf: Any, kind: Any) -> None:
    """Have the writer make ``kind`` of the matrices that it is given in bf16."""
    add, types = writer.add_tensor, gguf.GGMLQuantizationType

    def add_quantized(name: str, data: Any, *, raw_dtype: Any) -> None:
        if raw_dtype == types.BF16:
            try:
                data = gguf.quants.quantize(gguf.quants.dequantize(data, raw_dtype), kind)
                raw_dtype = kind
            except gguf.QuantError:
                pass  # rows that are no whole blocks
        add(name, data, raw_dtype=raw_dtype)

    writer.add_tensor = add_quantized


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
