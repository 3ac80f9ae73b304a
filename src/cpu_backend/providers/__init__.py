"""Who computes linear layers and mixtures of experts: this project's kernels, or a library's.

``CPU_BACKEND_LINEAR`` and ``CPU_BACKEND_EXPERTS`` name a provider.  The next one is a file beside
these with a class of interface.Provider, and a line in choice.KNOWN.  Nothing is imported before it
is chosen.  Output layers and embeddings are native whatever is chosen: their logits are fp32.
"""

from cpu_backend.products import Experts, Linear
from cpu_backend.providers.choice import check, describe, experts, linear, prepare, replayable
from cpu_backend.providers.interface import Matrix, Provider, Unsupported

__all__ = [
    "Experts",
    "Linear",
    "Matrix",
    "Provider",
    "Unsupported",
    "check",
    "describe",
    "experts",
    "linear",
    "prepare",
    "replayable",
]
