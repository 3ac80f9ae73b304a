"""The host's ops read inputs of any strides: their results are those of dense ones, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.ops import test_prepacked as prepacked
from tests.ops.accuracy import scattered
from tests.ops.test_quant_activations import packed

C = torch.ops._C
TOKENS, OUT, IN = 6, 64, 96

Results = torch.Tensor | tuple[torch.Tensor, ...]
# What an op reads, and the function of that which calls it.
Case = tuple[list[torch.Tensor], Callable[..., Results]]
Make = Callable[[torch.dtype, torch.Generator], Case]
CASES: dict[str, Make] = {}


def case(make: Make) -> Make:
    """One more op, by the function's name."""
    CASES[make.__name__] = make
    return make


def numbers(seeded: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=seeded)


def codes(seeded: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randint(-127, 128, shape, generator=seeded).to(torch.int8)


@pytest.mark.parametrize("name", CASES)
def test_inputs_may_have_any_strides(
    name: str, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    inputs, run = CASES[name](dtype, seeded)
    expected = list(_bytes(run(*inputs)))
    for place in range(len(inputs)):
        given: list[Any] = list(inputs)
        given[place] = scattered(inputs[place])
        assert not given[place].is_contiguous()
        assert list(_bytes(run(*given))) == expected, f"input {place}"


def _bytes(results: Results) -> Iterator[bytes]:
    for result in results if isinstance(results, tuple) else (results,):
        yield result.contiguous().view(torch.uint8).numpy().tobytes()


def test_seeds_may_be_one_for_all(seeded: torch.Generator) -> None:
    logits = numbers(seeded, 1, 300).expand(TOKENS, -1)
    seeds = torch.tensor([7]).expand(TOKENS)
    chosen = C.fused_gumbel_argmax(logits, seeds)
    assert chosen.tolist() == [C.fused_gumbel_argmax(logits[:1], seeds[:1]).item()] * TOKENS


# ---- sampling -----------------------------------------------------------------------------------


@case
def greedy_argmax(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    return [numbers(seeded, TOKENS, 133).to(dtype)], C.greedy_argmax


@case
def fused_gumbel_argmax(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    seeds = torch.randint(0, 2**62, (TOKENS,), generator=seeded)
    return [numbers(seeded, TOKENS, 133).to(dtype), seeds], C.fused_gumbel_argmax


@case
def apply_repetition_penalties(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    logits = numbers(seeded, TOKENS, 133)
    masks = torch.rand(2, TOKENS, 133, generator=seeded) < 0.3

    def run(*read: torch.Tensor) -> torch.Tensor:
        changed = logits.clone()
        C.apply_repetition_penalties_(changed, *read)
        return changed

    return [*masks, torch.rand(TOKENS, generator=seeded) + 0.5], run


# ---- activations and scaled products ------------------------------------------------------------


@case
def static_scaled_int8_quant(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    x = (20 * numbers(seeded, TOKENS, IN)).to(dtype)

    def run(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape, dtype=torch.int8)
        zero = torch.tensor([-30], dtype=torch.int32)
        C.static_scaled_int8_quant(out, x, torch.tensor([0.21]), zero)
        return out

    return [x], run


@case
def dynamic_scaled_int8_quant(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    def run(x: torch.Tensor) -> Results:
        out, scales = torch.empty(x.shape, dtype=torch.int8), torch.empty(TOKENS, 1)
        zeros = torch.empty(TOKENS, 1, dtype=torch.int32)
        C.dynamic_scaled_int8_quant(out, x, scales, zeros)
        return out, scales, zeros

    return [numbers(seeded, TOKENS, IN).to(dtype)], run


@case
def static_scaled_fp8_quant(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    def run(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape, dtype=torch.float8_e4m3fn)
        C.static_scaled_fp8_quant(out, x, scale, [2, 32])
        return out

    scale = torch.rand(TOKENS // 2, IN // 32, generator=seeded) + 0.1
    return [numbers(seeded, TOKENS, IN).to(dtype), scale], run


@case
def dynamic_per_token_scaled_fp8_quant(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    def run(x: torch.Tensor) -> Results:
        out, scales = torch.empty(x.shape, dtype=torch.float8_e4m3fn), torch.empty(TOKENS, 1)
        C.dynamic_per_token_scaled_fp8_quant(out, x, scales, None)
        return out, scales

    return [numbers(seeded, TOKENS, IN).to(dtype)], run


@case
def quantize_fp8e4m3_vec(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    scales = torch.rand(TOKENS, generator=seeded) + 0.1
    inputs = [numbers(seeded, TOKENS, IN).to(dtype), scales]
    return inputs, lambda x, scales: C.quantize_fp8e4m3_vec(x, True, scales)


@case
def onednn_scaled_mm(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    weight, scales = codes(seeded, OUT, IN).t(), torch.rand(OUT, generator=seeded)
    zeros = torch.randint(-9, 9, (TOKENS, 1), generator=seeded).int()
    adjust = weight.sum(0, keepdim=True, dtype=torch.float32) * scales

    def run(a: torch.Tensor, a_scales: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        out = torch.empty(TOKENS, OUT, dtype=dtype)
        with packed(weight, scales, True) as handle:
            C.onednn_scaled_mm(out, a, a_scales, *others, handle)
        return out

    a_scales = torch.rand(TOKENS, 1, generator=seeded) / 500
    bias = numbers(seeded, OUT).to(dtype)
    return [codes(seeded, TOKENS, IN), a_scales, zeros, adjust, bias], run


# ---- weights that are packed beforehand ---------------------------------------------------------


@case
def weight_packed_linear(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    def run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Results:
        outs = [torch.empty(TOKENS, OUT, dtype=dtype) for _ in range(2)]
        C.weight_packed_linear(outs[0], x, weight, bias, False)
        C.weight_packed_linear(outs[1], x, C.convert_weight_packed(weight), bias, True)
        return tuple(outs)

    weight = numbers(seeded, OUT, IN).to(dtype)
    return [numbers(seeded, TOKENS, IN).to(dtype), weight, numbers(seeded, OUT)], run


@case
def bmm(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    def run(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = torch.empty(3, TOKENS, OUT, dtype=dtype)
        C.bmm_cpu(out, x, weight, False, None)
        return out

    weight = numbers(seeded, 3, OUT, IN).to(dtype)
    return [numbers(seeded, 3, TOKENS, IN).to(dtype), weight], run


@case
def int8_scaled_mm_with_quant(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    def run(
        x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        result: torch.Tensor = C.int8_scaled_mm_with_quant(x, weight, scales, bias, dtype, False)
        return result

    scales, bias = torch.rand(OUT, 1, generator=seeded), numbers(seeded, OUT)
    return [numbers(seeded, TOKENS, IN).to(dtype), codes(seeded, OUT, IN), scales, bias], run


@case
def fp8_scaled_mm(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    def run(
        x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        block = [32, 32]
        result: torch.Tensor = C.fp8_scaled_mm_cpu(x, weight, scales, block, bias, dtype, False)
        return result

    weight = numbers(seeded, OUT, IN).to(torch.float8_e4m3fn)
    scales = torch.rand(OUT // 32, IN // 32, generator=seeded) + 0.1
    return [numbers(seeded, TOKENS, IN).to(dtype), weight, scales, numbers(seeded, OUT)], run


@case
def fp8_scaled_mm_with_quant(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    def run(
        x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        made = C.float8_linear_prepack_cpu(weight, scales)
        result: torch.Tensor = C.fp8_scaled_mm_with_quant(x, None, True, *made, bias, dtype)
        return result

    weight = numbers(seeded, OUT, IN).to(torch.float8_e4m3fn)
    scales = torch.rand(OUT, 2, generator=seeded) + 0.1
    return [numbers(seeded, TOKENS, IN).to(dtype), weight, scales, numbers(seeded, OUT)], run


@case
def int4_scaled_mm(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    def run(x: torch.Tensor, bias: torch.Tensor, *checkpoint: torch.Tensor) -> torch.Tensor:
        made = C.convert_weight_packed_scale_zp(*checkpoint, prepacked.GPTQ)
        result: torch.Tensor = C.int4_scaled_mm_cpu(x, *made, bias)
        return result

    _, checkpoint = prepacked.int4_weight(seeded, prepacked.GPTQ, 2, OUT, IN)
    return [numbers(seeded, TOKENS, IN).to(dtype), numbers(seeded, OUT), *checkpoint], run


@case
def gemm_wna16(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    def run(
        x: torch.Tensor,
        words: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        out = torch.empty(TOKENS, OUT, dtype=dtype)
        C.cpu_gemm_wna16(x, words, out, scales, zeros, bias, 8, "vec")
        return out

    def words(*shape: int) -> torch.Tensor:
        return torch.randint(-(2**31), 2**31, shape, generator=seeded).int()

    scales, bias = torch.rand(2, OUT, generator=seeded).to(dtype), numbers(seeded, OUT).to(dtype)
    x = numbers(seeded, TOKENS, IN).to(dtype)
    return [x, words(OUT // 16, 2 * IN), scales, words(2, OUT // 8), bias], run


# ---- experts and their routers ------------------------------------------------------------------


@case
def cpu_fused_moe(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    made = prepacked.Case(seeded, dtype, TOKENS)
    experts = prepacked.prepacked(made.gate_up), prepacked.prepacked(made.down)

    def run(
        x: torch.Tensor,
        gate_up_bias: torch.Tensor,
        down_bias: torch.Tensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
    ) -> torch.Tensor:
        out = torch.empty(TOKENS, prepacked.HIDDEN, dtype=dtype)
        biases = gate_up_bias, down_bias
        C.cpu_fused_moe(out, x, *experts, *biases, weights, ids, False, "silu", "vec")
        return out

    return [made.x, *made.biases, made.weights, made.ids], run


@case
def fused_experts(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    made = prepacked.Case(seeded, dtype, TOKENS)

    def run(*read: torch.Tensor) -> torch.Tensor:
        made.x, gate_up, down, made.weights, made.ids = read
        return made.fused(prepacked.UNQUANTIZED, gate_up, down, is_packed=False).clone()

    return [made.x, made.gate_up, made.down, made.weights, made.ids], run


@case
def biased_topk(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    def run(logits: torch.Tensor, bias: torch.Tensor) -> Results:
        weights, ids = C.biased_topk_cpu(logits, logits, bias, 4, True, "sigmoid", 0, 2.5, True)
        return weights, ids

    return [numbers(seeded, TOKENS, 16).to(dtype), numbers(seeded, 16)], run


@case
def hash_topk(dtype: torch.dtype, seeded: torch.Generator) -> Case:
    def run(logits: torch.Tensor, table: torch.Tensor) -> Results:
        weights, ids = C.hash_topk_cpu(logits, table, 4, "sigmoid", 0, 16, 2.5)
        return weights, ids

    table = torch.randint(0, 16, (TOKENS, 4), generator=seeded).int()
    return [numbers(seeded, TOKENS, 16).to(dtype), table], run
