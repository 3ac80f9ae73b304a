"""What the bytes of a page depend on beside its tokens: pages of another identity are never read.

A page is found by its tokens, and by what the host hashes with them (media, salts).  The rest is
here: the weights, how they are computed, and how pages are laid out.  What is the same for sure is
the same identity; a copy of a model with other dates, or another version of this project, is not.
"""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cpu_backend import envs, native, ops
from cpu_backend.errors import ConfigError

PACKAGES = ("vllm-cpu-backend", "vllm", "torch", "transformers")
VARIABLES = (envs.ACTIVATIONS, envs.LINEAR, envs.EXPERTS, envs.MOE_PREPACK)


def settings(config: Any) -> dict[str, Any]:
    """Of an engine's configuration (the host's VllmConfig), before there is any engine: processes
    that load a model change what they know of it, and all have to agree."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    draft = config.speculative_config
    return {
        "drafts": draft and [draft.method, draft.num_speculative_tokens],
        "load": [str(config.load_config.load_format), model.seed],
        "model": json.loads(model.hf_config.to_json_string(use_diff=False)),
        "architecture": model.architecture,
        "media": str(model.multimodal_config),
        "length": model.max_model_len,
        "quantization": model.quantization,
        "dtypes": [str(model.dtype), str(cache.cache_dtype), cache.kv_cache_dtype_skip_layers],
        "block": [cache.block_size, cache.mamba_block_size, str(cache.mamba_cache_dtype)],
        "hash": [cache.prefix_caching_hash_algo, platform.python_version()],
        "ranks": [parallel.tensor_parallel_size, parallel.pipeline_parallel_size],
        "experts": parallel.enable_expert_parallel,
        "packages": {name: version(name) for name in PACKAGES},
        "library": hashlib.sha256((native.FOLDER / native.KERNELS).read_bytes()).hexdigest(),
        "instructions": ops.load().target,
        "settings": {variable.name: variable.get() for variable in VARIABLES},
    }


def folder_name(config: Any, settings: dict[str, Any]) -> tuple[str, str]:
    """(name of the folder for pages of this engine, all that is known of them as JSON), once the
    model has been loaded.  ConfigError where its weights are in no folder."""
    draft = config.speculative_config and config.speculative_config.draft_model_config
    weights = [_files(model, config.load_config) for model in (config.model_config, draft) if model]
    text = json.dumps({**settings, "weights": weights}, sort_keys=True, indent=1, default=str)
    name = Path(config.model_config.model).name
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
    return f"{safe[:60]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}", text


def _files(model: Any, load: Any) -> list[tuple[str, int, int]]:
    """(name, bytes, time of the last change) of every file of a model."""
    folder = Path(model.model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(
                snapshot_download(
                    model.model,
                    revision=model.revision,
                    cache_dir=load.download_dir,
                    local_files_only=True,
                )
            )
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{envs.DISK_CACHE.name} needs to know which weights pages were made with, and "
                f"'{model.model}' is no folder: download the model and name its folder."
            ) from error
    found = []
    for path in sorted(folder.rglob("*")):
        real = path.resolve()  # of a download the name of its contents
        if real.is_file():
            state = real.stat()
            name = f"{path.relative_to(folder)} {real.name}"
            found.append((name, state.st_size, state.st_mtime_ns))
    return found
