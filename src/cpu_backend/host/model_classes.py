"""Which of the host's classes computes an architecture.

What: a look into its registry.
Why: several architectures are one class, and what was found of one holds for all; and some classes
    are written for GPUs, with kernels of their own.
Since: 0.32
Until: the host tells.
"""

from __future__ import annotations

# Where the host has those that are written for one maker's GPUs or for each maker's.
FOR_GPUS = "vllm.models."


def class_of(architecture: str) -> str:
    """The class's name; that of the architecture where the registry has none."""
    return _entry(architecture)[1]


def is_for_gpus(architecture: str) -> bool:
    """Whether the class is where those for GPUs are."""
    return _entry(architecture)[0].startswith(FOR_GPUS)


def _entry(architecture: str) -> tuple[str, str]:
    """Module and class in the registry; no module where it has none."""
    from vllm.model_executor.models.registry import _VLLM_MODELS

    module, name = _VLLM_MODELS.get(architecture, ("", architecture))
    return str(module), str(name)
