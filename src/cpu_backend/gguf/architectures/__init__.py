"""The architectures of GGUF files that are understood: a class for each (``base.Architecture``)."""

from __future__ import annotations

from cpu_backend.gguf.architectures import (
    alternating,
    cohere,
    deci,
    deepseek,
    delta,
    dense,
    encoders,
    exaone,
    falcon_h1,
    gemma,
    glm,
    gpt_oss,
    granite,
    granite_hybrid,
    internlm,
    kimi,
    layer_norm,
    lfm2,
    llama,
    llama4,
    mamba,
    mistral,
    mixtures,
    nemotron,
    olmo,
    phi,
    qwen,
    windows,
)
from cpu_backend.gguf.architectures.base import Architecture
from cpu_backend.gguf.reader import GgufFile

FAMILIES = (
    *(alternating, cohere, deci, deepseek, delta, dense, encoders, exaone, falcon_h1, gemma),
    *(glm, gpt_oss, granite, granite_hybrid, internlm, kimi, layer_norm, lfm2, llama, llama4),
    *(mamba, mistral, mixtures, nemotron, olmo, phi, qwen, windows),
)
KNOWN: dict[str, type[Architecture]] = {
    name: kind for family in FAMILIES for name, kind in family.KNOWN.items()
}
# Where an architecture has mixtures of experts under the same name.
MIXTURES: dict[str, type[Architecture]] = {**granite.MIXTURES, **llama.MIXTURES}


def find(file: GgufFile) -> Architecture:
    """What the file holds; raises ConfigError where that is not known."""
    name = file.get("general.architecture", str)
    known = MIXTURES if name in MIXTURES and file.get(f"{name}.expert_count", int, 0) else KNOWN
    if name not in known:
        raise file.error(
            f"holds a model of the architecture '{name}', which is not supported",
            f"choose one of {', '.join(sorted(KNOWN))}, or the original checkpoint",
        )
    return known[name](file)
