"""Configurations that published checkpoints bring as code of their own, and files do not."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, LlamaConfig

from cpu_backend.gguf.architectures.deci import MODEL_TYPE


class Part(dict[str, Any]):
    """A part of a configuration whose entries the host reads as attributes."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class DeciConfig(LlamaConfig):
    """A Llama whose layers differ."""

    model_type = MODEL_TYPE

    def __post_init__(self, **kwargs: Any) -> None:
        blocks = kwargs.pop("block_configs", [])
        super().__post_init__(**kwargs)
        self.block_configs = [
            Part({half: Part(said) for half, said in block.items()}) for block in blocks
        ]


def register() -> None:
    """Make them known to ``transformers``, and so to the host."""
    AutoConfig.register(MODEL_TYPE, DeciConfig, exist_ok=True)
