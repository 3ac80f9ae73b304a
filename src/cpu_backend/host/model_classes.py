"""Which of the host's classes computes an architecture.

What: a look into its registry.
Why: several architectures are one class, and what was found of one holds for all.
Since: 0.32
Until: the host tells.
"""

from __future__ import annotations


def class_of(architecture: str) -> str:
    """The class's name; that of the architecture where the registry has none."""
    from vllm.model_executor.models.registry import _VLLM_MODELS

    _, name = _VLLM_MODELS.get(architecture, ("", architecture))
    return str(name)
