"""Linear layers: weights of real models against 1 to 1,024 tokens, here and by oneDNN in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


Layer = Callable[[torch.Tensor], torch.Tensor]


def _native(weight: torch.Tensor, _: int) -> Layer:
    return ops.PackedLinear(weight)


def _onednn(weight: torch.Tensor, tokens: int) -> Layer:
    """oneDNN as torch brings it, the weight in the order that it chose for so many tokens."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, tokens)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def _error(layer: Layer, weight: torch.Tensor, x: torch.Tensor) -> float:
    """Relative to fp32; every panel is compared."""
    few = x[:: max(1, len(x) // 4)]
    expected = few.float() @ weight[:_DISTINCT].float().t()
    expected = expected.repeat(1, -(-len(weight) // _DISTINCT))[:, : len(weight)]
    return float((layer(x)[:: max(1, len(x) // 4)] - expected).norm() / expected.norm())


def works(models: list[str], dtypes: list[torch.dtype], sizes: list[int]) -> Iterator[Work]:
    """One after the other, so that only one shape's weights are in memory at a time."""
    return _works("linear", _native, models, dtypes, sizes)


def onednn_works(models: list[str], dtypes: list[torch.dtype], sizes: list[int]) -> Iterator[Work]:
    """The same by oneDNN, of the dtypes that it has for this CPU."""
    return _works("linear, oneDNN", _onednn, models, dtypes, sizes)


def _works(
    kernel: str,
    pack: Callable[[torch.Tensor, int], Layer],
    models: list[str],
    dtypes: list[torch.dtype],
    sizes: list[int],
) -> Iterator[Work]:
    for model in models:
        for name, (out_features, in_features) in MODELS[model].linears().items():
            for dtype in dtypes:
                weight = _weight(out_features, in_features, dtype)
                copies = copies_for(weight.nbytes)
                for tokens in sizes:
                    x = torch.randn(tokens, in_features).to(dtype)
                    try:
                        layers = [pack(weight, tokens) for _ in range(copies)]
                    except RuntimeError as error:
                        print(f"{kernel} {dtype}: {str(error).splitlines()[0]}")
                        break
                    yield Work(
                        kernel,
                        f"{model} {name} {out_features}x{in_features}",
                        str(dtype).removeprefix("torch."),
                        f"M={tokens}",
                        lambda i, layers=layers, x=x: layers[i](x),
                        copies,
                        weight.nbytes,
                        2 * tokens * out_features * in_features,
                        _error(layers[0], weight, x),
                    )
