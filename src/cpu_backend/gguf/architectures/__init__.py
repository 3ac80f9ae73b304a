"""The architectures of GGUF files that are understood: a class for each (``base.Architecture``)."""

from __future__ import annotations

from cpu_backend.gguf.architectures import (
    delta,
    falcon_h1,
    gemma,
    granite_hybrid,
    lfm2,
    llama,
    mamba,
    nemotron,
    qwen,
)
from cpu_backend.gguf.architectures.base import Architecture
from cpu_backend.gguf.reader import GgufFile

KNOWN: dict[str, type[Architecture]] = {
    **llama.KNOWN,
    **qwen.KNOWN,
    **gemma.KNOWN,
    **delta.KNOWN,
    **falcon_h1.KNOWN,
    **granite_hybrid.KNOWN,
    **lfm2.KNOWN,
    **mamba.KNOWN,
    **nemotron.KNOWN,
}
# Where an architecture has mixtures of experts under the same name.
MIXTURES: dict[str, type[Architecture]] = {**llama.MIXTURES}


def find(file: GgufFile) -> Architecture:
    """What the file holds; raises ConfigError where that is not known, or one part of it."""
    name = file.get("general.architecture", str)
    known = MIXTURES if name in MIXTURES and file.get(f"{name}.expert_count", int, 0) else KNOWN
    if name not in known:
        raise file.error(
            f"holds a model of the architecture '{name}', which is not supported",
            f"choose one of {', '.join(sorted(KNOWN))}, or the original checkpoint",
        )
    if file.get("split.count", int, 1) != 1:
        raise file.error("is one part of several", "merge them with llama-gguf-split --merge")
    return known[name](file)
