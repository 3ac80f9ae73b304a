"""A model's class is imported in this process, and what it lacks is named.

What: ``_run_in_subprocess`` calls the function here; classes that need a Python package name it,
    and those for GPUs are refused.
Why: the host inspects classes in another Python, because of CUDA contexts.  That one imports what
    lies in the current folder, and everything else once more.  The engine's process then has the
    class from the fork.
Since: 0.32
Until: the host inspects without another process where no CUDA context worries it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cpu_backend import architectures
from cpu_backend.host.seam import patch
from cpu_backend.serving import packages

REGISTRY = "vllm.model_executor.models.registry"


@patch(REGISTRY, "_run_in_subprocess(fn)")
def inspect_here(original: Any) -> Any:
    """Importing must not start threads, which would not survive the fork."""
    import torch

    def run(fn: Callable[[], Any]) -> Any:
        torch.set_num_threads(1)
        return fn()

    return run


@patch(REGISTRY, "_try_inspect_model_cls(model_arch, model)")
def inspect(original: Any) -> Any:
    """What was inspected may be known of an earlier start, so it is loaded the same way."""
    look = packages.in_classes(original, "inspect_model_cls")

    def inspect_for_cpus(architecture: str, model: Any) -> Any:
        architectures.check_class(architecture)
        return look(architecture, model)

    return inspect_for_cpus


@patch(REGISTRY, "_try_load_model_cls(model_arch, model)")
def load(original: Any) -> Any:
    """See inspect."""
    return packages.in_classes(original, "load_model_cls")
