"""Linear layers: weights of real models against 1 to 1,024 tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from measure import Work, copies_for
from models import MODELS

from cpu_backend import ops

TOKENS = (1, 2, 4, 8, 16, 32, 64, 256, 1024)
_DISTINCT = 97  # rows of a weight before they repeat: coprime to every panel width


def _weight(out_features: int, in_features: int, dtype: torch.dtype) -> torch.Tensor:
    """Random rows, repeated: filling gigabytes with random numbers would take the time."""
    distinct = torch.randn(_DISTINCT, in_features).to(dtype)
    return distinct.repeat(-(-out_features // _DISTINCT), 1)[:out_features]


def _error(packed: ops.PackedLinear, weight: torch.Tensor, x: torch.Tensor) -> float:
    """Relative to fp32; every panel is compared."""
    few = x[:: max(1, len(x) // 4)]
    expected = few.float() @ weight[:_DISTINCT].float().t()
    expected = expected.repeat(1, -(-len(weight) // _DISTINCT))[:, : len(weight)]
    return float((packed(x)[:: max(1, len(x) // 4)] - expected).norm() / expected.norm())


def works(models: list[str], dtypes: list[torch.dtype], sizes: list[int]) -> Iterator[Work]:
    """One after the other, so that only one shape's weights are in memory at a time."""
    for model in models:
        for name, (out_features, in_features) in MODELS[model].linears().items():
            for dtype in dtypes:
                weight = _weight(out_features, in_features, dtype)
                copies = copies_for(weight.nbytes)
                packed = [ops.PackedLinear(weight) for _ in range(copies)]
                for tokens in sizes:
                    x = torch.randn(tokens, in_features).to(dtype)
                    yield Work(
                        "linear",
                        f"{model} {name} {out_features}x{in_features}",
                        str(dtype).removeprefix("torch."),
                        f"M={tokens}",
                        lambda i, packed=packed, x=x: packed[i](x),
                        copies,
                        weight.nbytes,
                        2 * tokens * out_features * in_features,
                        _error(packed[0], weight, x),
                    )
                del packed, weight
