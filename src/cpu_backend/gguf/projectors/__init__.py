"""What makes a text's hidden states of pictures, a class for each kind (``base.Projector``).

llama.cpp calls such a file a multimodal projector: mmproj-*.gguf, of the architecture ``clip``.
"""

from __future__ import annotations

from cpu_backend.gguf.architectures.base import Architecture
from cpu_backend.gguf.projectors import (
    gemma,
    gemma4,
    glm,
    internvl,
    lfm2,
    llama4,
    llava,
    minicpm,
    omni,
    pixtral,
    qwen,
    smolvlm,
    whisper,
)
from cpu_backend.gguf.projectors.base import Projector
from cpu_backend.gguf.reader import GgufFile

__all__ = ["Projector", "find"]

FAMILIES = (
    *(gemma, gemma4, glm, internvl, lfm2, llama4, llava, minicpm, pixtral, qwen, smolvlm),
    *(omni, whisper),
)
OLDEST = "mlp"  # the only kind when files did not say theirs
KNOWN: tuple[type[Projector], ...] = tuple(known for family in FAMILIES for known in family.KNOWN)


def find(file: GgufFile, text: Architecture) -> Projector:
    """What the file holds; raises ConfigError where that is not known or not for ``text``."""
    if file.get("general.architecture", str) != "clip":
        raise file.error("holds no projector of pictures")
    kinds = (file.get(f"clip.{of}projector_type", str, "") for of in ("", "vision.", "audio."))
    kind = next(filter(None, kinds), OLDEST)
    of_kind = [known for known in KNOWN if known.kind == kind]
    if not of_kind:
        raise file.error(
            f"holds a projector of the kind '{kind}', which is not supported",
            f"choose one of {', '.join(sorted({known.kind for known in KNOWN}))}",
        )
    for known in of_kind:
        if known.fits(file, text):
            return known(file, text)
    raise file.error(f"holds a projector of the kind '{kind}', and its text is of '{text.name}'")
