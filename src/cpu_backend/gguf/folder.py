"""``vllm serve model.gguf``: the host is given a small model folder in place of the file.

The folder lies in the user's cache and holds what the host reads of a checkpoint before its
weights: config.json, whose quantization_config names the file, tokenizer and chat template.  It is
made once per file (path, size and time of the last change) and never seen half-written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from cpu_backend.envs import user_cache
from cpu_backend.errors import ConfigError
from cpu_backend.gguf import locate
from cpu_backend.gguf.checkpoint import Checkpoint
from cpu_backend.gguf.reader import GgufFile
from cpu_backend.gguf.tokenizer import GgufTokenizer
from cpu_backend.gguf.vocabulary import ends

logger = logging.getLogger("vllm.cpu_backend")  # under the host's logger, so it is seen

METHOD = "cpu_gguf"  # of quantization, and the load format
SENTENCE_MODULES, POOLING = "sentence_transformers.models", "1_Pooling"

# Raise this when the files written from the same GGUF file change.
FORMAT_VERSION = 2


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
    for name in locate.projections(file):
        logger.warning(
            "cpu_backend: '%s' is not read: a model in a GGUF file takes text alone here.", name
        )
    changed: dict[str, Any] = {"model": str(model_folder(file, not arguments.get("tokenizer")))}
    if not arguments.get("served_model_name"):
        changed["served_model_name"] = [str(model)]
    if arguments.get("load_format", "auto") == "auto":
        changed["load_format"] = METHOD
    return arguments | changed


def model_folder(path: Path, with_tokenizer: bool = True) -> Path:
    """The folder that stands for the GGUF file ``path``; made if it is not there.

    Raises ConfigError where the file is no whole model of a supported architecture.
    """
    path = path.expanduser().absolute()
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(
            f"The GGUF file '{path}' cannot be read ({error.strerror}): check its path."
        ) from error
    identity = (FORMAT_VERSION, str(path), status.st_size, status.st_mtime_ns, with_tokenizer)
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    target = user_cache() / "gguf" / f"{path.stem[:100]}-{digest}"
    if not target.is_dir():
        checkpoint = Checkpoint(GgufFile(path))
        tokenizer = GgufTokenizer(checkpoint.file) if with_tokenizer else None
        rows = checkpoint.config["vocab_size"]
        if tokenizer is not None and len(tokenizer.tokens) > rows:
            raise checkpoint.file.error(
                f"has {len(tokenizer.tokens)} tokens, and a table of {rows} rows for them"
            )
        try:
            _write(checkpoint, tokenizer, target)
        except OSError as error:
            raise ConfigError(
                f"'{target.parent}' cannot be written ({error.strerror}): "
                "set XDG_CACHE_HOME to a folder that can."
            ) from error
    return target


def _write(checkpoint: Checkpoint, tokenizer: GgufTokenizer | None, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=".", dir=target.parent))
    try:
        for name, content in _files(checkpoint, tokenizer).items():
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
