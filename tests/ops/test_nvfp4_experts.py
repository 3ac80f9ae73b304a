"""Experts in NVFP4 as checkpoints store them, against what their numbers stand for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cpu_backend.errors import ConfigError
from cpu_backend.layers.quantization.fp8 import ModelOptNvFp4ExpertsMethod, NvFp4ExpertsMethod
from cpu_backend.ops import Experts
from tests.ops.accuracy import assert_accurate
from tests.reference.quant import dequantize_nvfp4

HIDDEN, INTERMEDIATE, EXPERTS, TOKENS = 80, 48, 4, 9
SHAPES = {"w13": (2 * INTERMEDIATE, HIDDEN), "w2": (HIDDEN, INTERMEDIATE)}


def mixture(has_bias: bool = False) -> Any:
    """What a method asks of the host's configuration."""
    return SimpleNamespace(has_bias=has_bias)


def exact(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> Any:
    """Expert e alone with its rows: x [experts, tokens, hidden]."""
    hidden = torch.nn.functional.silu(x @ gate.mT) * (x @ up.mT)
    return hidden @ down.mT


@pytest.mark.parametrize("layout", ["compressed-tensors", "modelopt"])
def test_experts_are_what_their_numbers_stand_for(layout: str, seeded: torch.Generator) -> None:
    """Each matrix has its own global scale: a divisor in one layout, a factor in the other."""
    layer, weights = SimpleNamespace(), []
    for name, (rows, columns) in SHAPES.items():
        halves = 2 if name == "w13" else 1
        pairs = torch.randint(0, 256, (EXPERTS, rows, columns // 2), generator=seeded).byte()
        scales = 100 * torch.rand(EXPERTS, rows, columns // 16, generator=seeded) + 1
        scales = scales.to(torch.float8_e4m3fn)
        divisors = 300 + 2000 * torch.rand(EXPERTS, halves, generator=seeded)
        cut = [t.unflatten(1, (halves, -1)) for t in (pairs, scales)]
        weights += dequantize_nvfp4(*cut, divisors).unbind(1)
        divisors = divisors.squeeze(1)
        setattr(layer, f"{name}_weight_scale", scales)
        if layout == "modelopt":
            setattr(layer, f"{name}_weight", pairs)
            setattr(layer, f"{name}_weight_scale_2", 1 / divisors)
        else:
            setattr(layer, f"{name}_weight_packed", pairs)
            setattr(layer, f"{name}_weight_global_scale", divisors)
    kind = ModelOptNvFp4ExpertsMethod if layout == "modelopt" else NvFp4ExpertsMethod
    method: Any = kind(mixture())
    packed = [
        [method.packed(layer, name, e, parts) for e in range(EXPERTS)]
        for name, parts in (("w13", 2), ("w2", 1))
    ]
    x = torch.randn(EXPERTS * TOKENS, HIDDEN, generator=seeded)
    out = torch.empty_like(x)
    ids = torch.arange(EXPERTS, dtype=torch.int32).repeat_interleave(TOKENS)[:, None]
    Experts(*packed, "silu")(out, x, torch.ones(len(x), 1), ids)
    # Activations are integers of 16 bits.
    rows = x.unflatten(0, (EXPERTS, TOKENS))
    assert_accurate(out.view_as(rows), exact, rows, *weights, slack=1e-4)


@pytest.mark.parametrize(
    ("has_bias", "intermediate", "said"),
    [
        (True, 64, "experts with biases are not supported in NVFP4"),
        (False, 24, r"would have 24 channels of each expert, .* use fewer ranks \(-tp\)"),
    ],
)
def test_what_has_no_place_is_refused_by_name(has_bias: bool, intermediate: int, said: str) -> None:
    method: Any = NvFp4ExpertsMethod(mixture(has_bias))
    layer = SimpleNamespace(layer_name="layers.3.experts")
    with pytest.raises(ConfigError, match=f"layers.3.experts cannot be loaded: .*{said}"):
        method.create_weights(layer, 8, 64, intermediate, torch.bfloat16)
