# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Contributors to vllm-cpu-backend
"""Converts a Llama GGUF file into a Hugging Face checkpoint: config, tokenizer and weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cpu_backend.demo_model.fetch import PACKAGE
from cpu_backend.demo_model.support import DemoModelError, progress, write_json
from cpu_backend.errors import ConfigError

if TYPE_CHECKING:
    from cpu_backend.gguf.checkpoint import Checkpoint
    from cpu_backend.gguf.tokenizer import GgufTokenizer

WEIGHTS_NAME = "model.safetensors"

# Text that a byte-level tokenizer must give back unchanged; checked on every conversion.
ROUND_TRIP_TEXT = (
    "Odd  text:\t1234.5\r\n naïve café, 东京 🙂🏽, it's \u00a0<|im_start|>user\n0x7F\u200d"
)


class WrongGgufError(DemoModelError):
    """The GGUF file holds another model."""

    def __init__(self, finding: str) -> None:
        super().__init__(f"The GGUF file {finding}: pass the one of {PACKAGE}.")


def write_checkpoint(gguf_file: Path, folder: Path) -> None:
    """Write config, tokenizer and weights of a Llama GGUF file into an existing ``folder``."""
    from cpu_backend.gguf.checkpoint import Checkpoint
    from cpu_backend.gguf.reader import GgufFile
    from cpu_backend.gguf.tokenizer import GgufTokenizer

    try:
        checkpoint = Checkpoint(GgufFile(gguf_file))
        tokenizer = GgufTokenizer(checkpoint.file)
    except ConfigError as error:
        raise DemoModelError(str(error)) from error
    config = checkpoint.config | {"torch_dtype": "bfloat16"}
    write_json(folder / "config.json", config)
    special_ids = {key: value for key, value in config.items() if key.endswith("_token_id")}
    write_json(folder / "generation_config.json", {"_from_model_config": True, **special_ids})
    _write_tokenizer(tokenizer, config["max_position_embeddings"], folder)
    _write_weights(checkpoint, folder / WEIGHTS_NAME)


def _write_tokenizer(made: GgufTokenizer, context_length: int, folder: Path) -> None:
    encoded = made.tokenizer.encode(ROUND_TRIP_TEXT, add_special_tokens=False).ids
    if made.tokenizer.decode(encoded, skip_special_tokens=False) != ROUND_TRIP_TEXT:
        raise WrongGgufError("has a tokenizer that does not give text back unchanged")
    made.tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", made.settings(context_length))
    write_json(folder / "special_tokens_map.json", made.named)


def _write_weights(checkpoint: Checkpoint, weights_file: Path) -> None:
    import torch
    from safetensors.torch import save_file

    weights: dict[str, torch.Tensor] = {}
    with progress(total=len(checkpoint.entries), unit="tensor") as bar:
        # One at a time, as fp32 takes twice the room.
        for name, entry in checkpoint.entries.items():
            weights[name] = checkpoint.values(entry).to(torch.bfloat16).contiguous()
            bar.update(1)
    save_file(weights, weights_file, metadata={"format": "pt"})
    # save_file lets only the owner read; a shared cache needs the mode of the other files.
    weights_file.chmod(weights_file.with_name("config.json").stat().st_mode)
