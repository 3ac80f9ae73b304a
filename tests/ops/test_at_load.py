"""Quantization at load: codes against the weight they stand for, packed layers against codes."""

from __future__ import annotations

import pytest
import torch

from cpu_backend import ops
from cpu_backend.layers.quantization import at_load
from tests.reference.quant import dequantize_levels

SHAPES = [(5, 64), (17, 128), (33, 200), (64, 576), (3, 20)]


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_int8_is_off_by_half_a_step_at_most(n: int, k: int, seeded: torch.Generator) -> None:
    weight = torch.randn(n, k, generator=seeded)
    group = min(at_load.GROUP, k)
    codes, scales, _, _ = ops.quantize_weight(weight, 8, group)
    steps = scales.float().repeat_interleave(group, 1)[:, :k]
    restored = (codes.float() - 128) * steps
    # The scale itself is rounded to fp16, which the largest value feels 127 times.
    assert ((restored - weight).abs() <= 0.5 * steps + 127 * steps * 2**-11).all()


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_int4_finds_the_levels_a_weight_is_made_of(n: int, k: int, seeded: torch.Generator) -> None:
    group, pieces = min(at_load.GROUP, k), -(-k // 32)
    codes = torch.randint(0, 16, (n, k), generator=seeded)
    codes[:, ::32], codes[:, 1::32] = 0, 15  # every piece uses its whole range
    steps = torch.randint(1, 17, (n, pieces), generator=seeded)
    bases = 1 + (torch.rand(n, pieces, generator=seeded) * (255 - 15 * steps)).int()
    steps[:, ::4], bases[:, ::4] = 16, 15  # one piece of each group reaches 127
    scales = (torch.rand(n, -(-k // group), generator=seeded) + 0.5).half()
    weight = dequantize_levels(codes, scales.t(), group, (steps + 256 * bases).t())
    found, found_scales, levels, error = ops.quantize_weight(weight.float(), 4, group)
    assert error < 1e-6
    assert torch.equal(found, codes.byte())
    assert torch.equal(found_scales, scales)
    assert torch.equal(levels.int(), (steps + 256 * bases).int())


def test_int4_of_random_weights_loses_less_than_plain_rounding(seeded: torch.Generator) -> None:
    weight = torch.randn(64, 256, generator=seeded)
    *_, error = ops.quantize_weight(weight, 4, 128)
    low = weight.unflatten(1, (-1, 32)).amin(-1, keepdim=True)
    high = weight.unflatten(1, (-1, 32)).amax(-1, keepdim=True)
    step = (high - low) / 15
    plain = ((weight.unflatten(1, (-1, 32)) - low) / step).round() * step + low
    plain_error = (plain.flatten(1) - weight).norm() / weight.norm()
    assert error < plain_error


@pytest.mark.parametrize("pack", [at_load.pack_int8, at_load.pack_int4])
def test_packed_layers_multiply_what_was_quantized(pack: object, seeded: torch.Generator) -> None:
    weight = torch.randn(48, 200, generator=seeded) / 8
    x = torch.randn(7, 200, generator=seeded)
    result = pack(weight)(x)  # type: ignore[operator]
    exact = x @ weight.t()
    assert (result - exact).norm() / exact.norm() < (0.01 if pack is at_load.pack_int8 else 0.09)


@pytest.mark.parametrize("pack", [at_load.pack_int8, at_load.pack_int4])
def test_activations_in_8_bits_are_coarser(
    pack: object, seeded: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(48, 256, generator=seeded) / 8
    x = torch.randn(7, 256, generator=seeded)
    fine = pack(weight)(x)  # type: ignore[operator]
    logits = at_load.pack_int8(weight, float_output=True)(x)
    monkeypatch.setenv("CPU_BACKEND_ACTIVATIONS", "int8")
    coarse = pack(weight)(x)  # type: ignore[operator]
    assert 1e-3 < (coarse - fine).norm() / fine.norm() < 2e-2
    assert torch.equal(at_load.pack_int8(weight, float_output=True)(x), logits)


def test_a_matrix_that_four_bits_cannot_hold_is_kept_in_eight(seeded: torch.Generator) -> None:
    weight = torch.randn(16, 64, generator=seeded) * 1e-3
    weight[:, ::32] = 1.0  # an outlier in every group
    assert ops.quantize_weight(weight, 4, 64)[3] < at_load.KEEP_ABOVE
    spread = torch.randn(16, 64, generator=seeded) ** 5
    error = ops.quantize_weight(spread, 4, 64)[3]
    kept = at_load.pack_int4(spread).nbytes > at_load.pack_int4(weight).nbytes
    assert kept == (error > at_load.KEEP_ABOVE)


def test_a_group_that_cuts_levels_is_refused(seeded: torch.Generator) -> None:
    weight = torch.randn(4, 100, generator=seeded)
    with pytest.raises(ValueError, match="a multiple of 32 channels or all of them, not 48 of 100"):
        ops.quantize_weight(weight, 4, 48)
    assert ops.quantize_weight(weight, 4, 100)[2].shape == (4, 4)


def test_what_stays_of_an_output_layer_is_not_what_stays_of_another(
    seeded: torch.Generator,
) -> None:
    """The host compares the layers of a model and its drafts, and shares one where they are so."""
    heads = [torch.nn.Linear(64, 48, bias=False) for _ in range(2)]
    for head in heads:
        head.weight.data = torch.randn(48, 64, generator=seeded)
        expected = head(torch.eye(64)).detach()
        at_load.AtLoadHeadMethod().process_weights_after_loading(head)
        assert torch.allclose(head.cpu_linear(torch.eye(64)), expected, atol=0.05)
    assert not torch.equal(heads[0].weight, heads[1].weight)
    assert heads[0].weight.numel() == 1
