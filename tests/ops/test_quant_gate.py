"""Quantized gate and up projections: the product of the halves in the linear layer itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cpu_backend.layers.quantization import at_load
from cpu_backend.layers.quantization.fp8 import matrix_of_mxfp4, matrix_of_mxfp8
from cpu_backend.ops import Activations, Codes, GroupScales, PackedLinear, QuantizedLinear
from cpu_backend.providers import Matrix
from tests.ops.accuracy import check_op, guarded

# [tokens, out_features / 2, in_features]: around lanes, panels, tiles and items of rows
SHAPES = [
    (1, 9, 64), (1, 150, 96), (2, 16, 96), (4, 33, 160), (13, 65, 256), (49, 70, 320), (130, 96, 64)
]  # fmt: skip
# A random weight [n, k] in so many parts.
Make = Callable[[torch.Generator, int, int, int], QuantizedLinear]


def integers(bits: int, zero: str, activations: str, group: int = 32) -> Make:
    """Of integer codes; group 0: all channels."""

    def make(seeded: torch.Generator, n: int, k: int, parts: int) -> QuantizedLinear:
        size = group if group else k
        codes = torch.randint(0, 2**bits, (n, k), generator=seeded).byte()
        scales = torch.rand(-(-k // size), n, generator=seeded) / 2**bits
        zeros = {
            "middle": None,
            "point": torch.randint(0, 2**bits, scales.shape, generator=seeded).float(),
            "offset": -scales * 2 ** (bits - 1),
        }[zero]
        return QuantizedLinear(
            Codes(codes, "bytes", bits),
            GroupScales(scales, size, zeros, zero),
            k,
            Activations(activations, 0.03),
            parts,
        )

    return make


def floats(seeded: torch.Generator, n: int, k: int) -> torch.Tensor:
    return torch.randn(n, k, generator=seeded) / k**0.5


def mx(matrix_of: Callable[..., Matrix], per_byte: int) -> Make:
    """Of microscaling formats."""

    def make(seeded: torch.Generator, n: int, k: int, parts: int) -> QuantizedLinear:
        codes = torch.randint(0, 120, (n, k // per_byte), generator=seeded).byte()
        codes = codes if per_byte == 2 else (codes // 2).view(torch.float8_e4m3fn)
        scales = torch.randint(121, 125, (n, k // 32), generator=seeded).byte()
        return QuantizedLinear(*matrix_of(codes, scales)._replace(parts=parts))

    return make


KINDS: dict[str, Make] = {
    "cpu_int8": lambda seeded, n, k, parts: at_load.pack_int8(floats(seeded, n, k), parts),
    "cpu_int4": lambda seeded, n, k, parts: at_load.pack_int4(floats(seeded, n, k), parts),
    "w4a16 point": integers(4, "point", "int16"),
    "w8a16 point": integers(8, "point", "int16"),
    "w4a16 offset": integers(4, "offset", "int16"),
    "w4a8": integers(4, "middle", "int8"),
    "w4a8 token": integers(4, "middle", "int8_token"),
    "w8a8 token": integers(8, "middle", "int8_token", 0),
    "w8a8 token azp": integers(8, "middle", "int8_token_azp", 0),
    "w8a8 static": integers(8, "middle", "int8_static", 0),
    "mxfp8": mx(matrix_of_mxfp8, 1),
    "mxfp4": mx(matrix_of_mxfp4, 2),
}


def gated(
    layer: PackedLinear, x: torch.Tensor, activation: str, bias: torch.Tensor | None
) -> torch.Tensor:
    out = torch.empty(len(x), layer.out_features // 2, dtype=x.dtype)
    layer.act_and_mul(out, x, activation, bias)
    return out


@pytest.mark.parametrize(("m", "half", "k"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_act_and_mul_is_the_two_steps(
    kind: str, m: int, half: int, k: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    make, state = KINDS[kind], seeded.get_state()
    plain = make(seeded, 2 * half, k, 1)
    halves = make(seeded.set_state(state), 2 * half, k, 2)
    x = torch.randn(m, k, generator=seeded).to(dtype)
    bias = torch.randn(2 * half, generator=seeded).to(dtype)
    both = plain(x, None, bias)
    assert both.isfinite().all()
    assert torch.equal(halves(x, None, bias), both)
    # In fp32 the compiler may contract the two copies of an activation differently.
    slack = 2.0**-21 if dtype == torch.float32 else 0.0
    for activation in ("silu", "gelu", "gelu_tanh"):
        out, expected = guarded(m, half, dtype), torch.empty(m, half, dtype=dtype)
        getattr(torch.ops._C, f"{activation}_and_mul")(expected, both)
        halves.act_and_mul(out.rows, x, activation, bias)
        torch.testing.assert_close(out.rows, expected, rtol=slack, atol=0.0)
        out.assert_intact()


@pytest.mark.parametrize("kind", KINDS)
def test_a_gated_row_depends_on_neither_batch_nor_threads(
    kind: str, dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    layer = KINDS[kind](seeded, 2 * 150, 160, 2)
    x = torch.randn(60, 160, generator=seeded).to(dtype)
    together = gated(layer, x, "silu", None)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        assert torch.equal(gated(layer, x, "silu", None), together)
        for size in (1, 3, 4, 13):
            assert torch.equal(gated(layer, x[7 : 7 + size], "silu", None), together[7 : 7 + size])


def test_gate_passes_opcheck(dtype: torch.dtype, seeded: torch.Generator) -> None:
    layer = at_load.pack_int8(floats(seeded, 18, 64), 2)
    x, out = torch.randn(5, 64, generator=seeded).to(dtype), torch.empty(5, 9, dtype=dtype)
    op = torch.ops.cpu_backend.linear_act_and_mul.default
    check_op(op, (out, x, layer._handle, None, "silu"))


def test_what_does_not_fit_is_refused(seeded: torch.Generator) -> None:
    x = torch.ones(3, 64)
    one = at_load.pack_int8(floats(seeded, 4, 64))
    with pytest.raises(ValueError, match="packed in 2 parts to have its halves multiplied"):
        one.act_and_mul(torch.empty(3, 2), x, "silu")
    with pytest.raises(ValueError, match="5 output features cannot be packed in 2 equal parts"):
        at_load.pack_int8(floats(seeded, 5, 64), 2)
