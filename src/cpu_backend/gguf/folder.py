"""``vllm serve model.gguf``: the host is given a small model folder in place of the file.

The folder lies in the user's cache and holds what the host reads of a checkpoint before its
weights: config.json, whose quantization_config names the file, tokenizer and chat template, and the
processor of a model that reads pictures.  It is made once per file (path, size and time of the last
change) and never seen half-written.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from cpu_backend.envs import user_cache
from cpu_backend.errors import ConfigError
from cpu_backend.gguf import architectures, locate, projectors
from cpu_backend.gguf.checkpoint import Checkpoint, Pictures
from cpu_backend.gguf.reader import GgufFile
from cpu_backend.gguf.tokenizer import GgufTokenizer
from cpu_backend.gguf.vocabulary import ends
from cpu_backend.serving import packages

logger = logging.getLogger("vllm.cpu_backend")  # under the host's logger, so it is seen

NAMED = "mmproj"  # in --model-loader-extra-config: the file to read pictures by; "" is none
METHOD = "cpu_gguf"  # of quantization, and the load format
SENTENCE_MODULES, POOLING = "sentence_transformers.models", "1_Pooling"

# Raise this when the files written from the same GGUF file change.
FORMAT_VERSION = 5


class PicturesError(ConfigError):
    """A file to read pictures by is damaged, or not for the text beside it."""


def prefer_folder(arguments: dict[str, Any]) -> dict[str, Any]:
    """The host's engine arguments with the folder in place of a GGUF file, if ``model`` means one.

    The model keeps its name: it is served under what the user gave.
    """
    model = arguments.get("model")
    if not isinstance(model, (str, os.PathLike)):
        return arguments
    file = locate.find(str(model), arguments.get("revision"))
    if file is None:
        return arguments
    drafts = arguments.get("speculative_config") or {}
    if "mtp" in str(drafts.get("method")) and not drafts.get("model"):
        raise ConfigError(
            f"Layers of the GGUF file '{file.name}' that only draft tokens are not used: name "
            "another method or model in --speculative-config, or leave it out."
        )
    changed: dict[str, Any] = {}
    options = arguments.get("model_loader_extra_config") or {}
    named = options.get(NAMED) if isinstance(options, dict) else None
    if named is not None:
        changed["model_loader_extra_config"] = {k: v for k, v in options.items() if k != NAMED}
    own_tokenizer = not arguments.get("tokenizer")
    pictures = _pictures(file, named, own_tokenizer)
    try:
        changed["model"] = str(model_folder(file, own_tokenizer, pictures))
    except PicturesError as error:
        if named:
            raise
        _warn(pictures, error)
        changed["model"] = str(model_folder(file, own_tokenizer))
    if not arguments.get("served_model_name"):
        changed["served_model_name"] = [str(model)]
    if arguments.get("load_format", "auto") == "auto":
        changed["load_format"] = METHOD
    return arguments | changed


def _pictures(file: Path, named: str | None, own_tokenizer: bool) -> Path | None:
    """The file by which the model in ``file`` reads pictures: the one that is ``named``, or the
    most exact of those beside it, or none."""
    if named == "":
        return None
    found = [Path(named)] if named else locate.projectors(file)
    if not found:
        return None
    text = architectures.find(GgufFile(file, vocabulary=False))
    fitting: list[tuple[int, str, Path, str]] = []
    for path in found:
        try:
            projector = projectors.find(GgufFile(path), text)
            for package in projector.needs:
                if importlib.util.find_spec(package) is None:
                    raise packages.missing(projector.class_name, package)
            if not own_tokenizer:
                raise ConfigError("It needs the model's own tokenizer: leave out --tokenizer.")
            fitting.append((path.stat().st_size, path.name, path, projector.media))
        except ConfigError as error:
            if named:
                raise
            _warn(path, error)
    if not fitting:
        return None
    *_, chosen, media = max(fitting)
    logger.info("cpu_backend: %s are read by '%s'", media, chosen.name)
    return chosen


def _warn(pictures: Path | None, error: ConfigError) -> None:
    assert pictures is not None
    logger.warning("cpu_backend: pictures are not read by '%s'. %s", pictures.name, error)


def model_folder(path: Path, with_tokenizer: bool = True, pictures: Path | None = None) -> Path:
    """The folder that stands for the GGUF file ``path``; made if it is not there.  pictures: the
    file by which it reads pictures.

    Raises ConfigError where the file is no whole model of a supported architecture, PicturesError
    where the other one is of no use for it.
    """
    files = [file.expanduser().absolute() for file in (path, pictures) if file is not None]
    identity = (FORMAT_VERSION, *map(_identity, files), with_tokenizer)
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    target = user_cache() / "gguf" / f"{path.stem[:100]}-{digest}"
    if not target.is_dir():
        checkpoint = Checkpoint(GgufFile(files[0]))
        read_by = None if pictures is None else _read_by(files[1], checkpoint)
        tokenizer = _tokenizer(checkpoint, read_by) if with_tokenizer else None
        rows = checkpoint.config["vocab_size"]
        if tokenizer is not None and len(tokenizer.tokens) > rows:
            raise checkpoint.file.error(
                f"has {len(tokenizer.tokens)} tokens, and a table of {rows} rows for them"
            )
        files_of_text = _files(checkpoint, tokenizer)
        if read_by is not None:
            assert tokenizer is not None
            files_of_text = _with_pictures(files_of_text, read_by, tokenizer)
        try:
            _write(files_of_text, tokenizer, target)
        except OSError as error:
            raise ConfigError(
                f"'{target.parent}' cannot be written ({error.strerror}): "
                "set XDG_CACHE_HOME to a folder that can."
            ) from error
    return target


def _read_by(path: Path, checkpoint: Checkpoint) -> Pictures:
    try:
        return Pictures(GgufFile(path), checkpoint)
    except ConfigError as error:
        raise PicturesError(str(error)) from error


def _tokenizer(checkpoint: Checkpoint, read_by: Pictures | None) -> GgufTokenizer:
    """The text's, with the tokens that stand for pictures."""
    if read_by is None:
        return GgufTokenizer(checkpoint.file)

    def renamed(ids: dict[str, int]) -> dict[int, str]:
        try:
            return read_by.projector.renamed(ids)
        except ConfigError as error:
            raise PicturesError(str(error)) from error

    return GgufTokenizer(checkpoint.file, renamed)


def _identity(path: Path) -> tuple[str, int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(
            f"The GGUF file '{path}' cannot be read ({error.strerror}): check its path."
        ) from error
    return str(path), status.st_size, status.st_mtime_ns


def _write(files: dict[str, Any], tokenizer: GgufTokenizer | None, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=".", dir=target.parent))
    try:
        for name, content in files.items():
            (staged / name).parent.mkdir(exist_ok=True)
            (staged / name).write_text(json.dumps(content, indent=2) + "\n")
        if tokenizer is not None:
            tokenizer.tokenizer.save(str(staged / "tokenizer.json"))
        staged.chmod(0o755)
        try:
            staged.rename(target)
        except OSError:
            if not target.is_dir():  # unless another process was faster
                raise
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _files(checkpoint: Checkpoint, tokenizer: GgufTokenizer | None) -> dict[str, Any]:
    import transformers

    # Without a version transformers warns of a mistake that tokenizers of old ones may have.
    config = checkpoint.config | {"transformers_version": transformers.__version__}
    # All of them, even where another tokenizer is used: a chat would go on past its end.
    end = config["eos_token_id"]
    stops = ends(checkpoint.file) or ([] if end is None else [end])
    generation = {"_from_model_config": True, "bos_token_id": config["bos_token_id"]}
    if stops:
        generation["eos_token_id"] = stops
    # A quantized output layer is packed as it is, beside the table that look-ups read.
    config["tie_word_embeddings"] = checkpoint.tied and not checkpoint.packs_table
    config["quantization_config"] = {"quant_method": METHOD, "file": str(checkpoint.file.path)}
    files: dict[str, Any] = {"config.json": config, "generation_config.json": generation}
    files |= _pooling(checkpoint.architecture.pooling(), config["hidden_size"])
    if tokenizer is not None:
        settings = tokenizer.settings(config["max_position_embeddings"])
        files |= {"tokenizer_config.json": settings, "special_tokens_map.json": tokenizer.named}
    return files


def _with_pictures(
    files: dict[str, Any], pictures: Pictures, tokenizer: GgufTokenizer
) -> dict[str, Any]:
    """The files of a model that is that of a text and what it makes of pictures."""
    text, ids, projector = files["config.json"], tokenizer.vocabulary.ids, pictures.projector
    whole = {name: text.pop(name) for name in ("quantization_config", "transformers_version")}
    shared = (
        "torch_dtype",
        "tie_word_embeddings",
        *(f"{part}_token_id" for part in ("bos", "eos", "pad")),
    )
    whole["quantization_config"]["pictures"] = str(pictures.file.path)
    return files | {
        "config.json": projector.whole(
            {
                **pictures.config,
                **projector.numbers(ids),
                **whole,
                **{name: text[name] for name in shared},
                "text_config": projector.of_text(text),
            }
        ),
        "tokenizer_config.json": files["tokenizer_config.json"] | dict(projector.marks),
        "processor_config.json": pictures.processor,
    }


def _pooling(kind: str, width: int) -> dict[str, Any]:
    """What sentence-transformers writes of a model that makes embeddings, which have length 1, as
    llama.cpp gives them."""
    if not kind:
        return {}
    modules = ("Transformer", ""), ("Pooling", POOLING), ("Normalize", "2_Normalize")
    return {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"{SENTENCE_MODULES}.{name}"}
            for i, (name, path) in enumerate(modules)
        ],
        f"{POOLING}/config.json": {"word_embedding_dimension": width, kind: True},
    }
