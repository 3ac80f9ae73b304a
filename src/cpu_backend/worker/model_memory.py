"""The tensors that a model keeps from step to step: what a recorded step may read beside its own.

Parameters and buffers are known to torch.  Beside them modules keep tensors as plain attributes, in
lists, in the objects that compute for them (attention implementations, quantization methods), and
as globals of the files that define them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import torch

# Objects of these packages may hold tensors for a module; others (configurations of other
# libraries, tokenizers, loggers) do not, or are not the model's.
_PACKAGES = ("vllm", "cpu_backend", "transformers", "compressed_tensors")
_DEPTH = 4  # module -> implementation -> kernel -> list


def model_memory(model: torch.nn.Module) -> list[torch.Tensor]:
    """All of them, each storage once."""
    storages: dict[int, torch.Tensor] = {}
    visited: set[int] = set()
    for module in model.modules():
        for tensor in itertools.chain(_tensors(vars(module), _DEPTH, visited), _globals(module)):
            if tensor.device.type == "cpu" and tensor.layout == torch.strided:
                storages.setdefault(tensor.untyped_storage().data_ptr(), tensor)
    return list(storages.values())


def _globals(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Tensors that the file of a module's class has as constants."""
    source = type(module).__module__
    if source.partition(".")[0] in _PACKAGES:
        values = vars(sys.modules[source]).values()
        yield from (value for value in values if isinstance(value, torch.Tensor))


def _tensors(value: Any, depth: int, visited: set[int]) -> Iterator[torch.Tensor]:
    """Tensors in a value of a module's: itself, in containers, in objects that compute for it."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    if depth == 0 or isinstance(value, str | bytes | int | float | torch.nn.Module | type):
        return
    if isinstance(value, dict):
        children: list[Any] = list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        children = list(value)
    elif type(value).__module__.partition(".")[0] in _PACKAGES and hasattr(value, "__dict__"):
        children = list(vars(value).values())
    else:
        return
    if id(value) in visited:
        return
    visited.add(id(value))
    for child in children:
        yield from _tensors(child, depth - 1, visited)
