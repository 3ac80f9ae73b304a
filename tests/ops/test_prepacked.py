"""The host's products with weights packed beforehand, called as its own Python calls them."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from tests.ops.accuracy import assert_accurate
from tests.reference.activation import gated, gelu, gelu_tanh, silu, swigluoai
from tests.reference.linear import linear
from tests.reference.mixture import mixture
from tests.reference.quant import int8_activations

C = torch.ops._C
AWQ, GPTQ = 0, 1
UNQUANTIZED, INT8, FP8, INT4, MXFP4, FP8_ACTIVATIONS = range(6)
# [tokens, out_features, in_features]
SHAPES = [(1, 32, 64), (5, 96, 256), (33, 160, 384)]
EXPERTS, HIDDEN, INTERMEDIATE, TOP_K = 5, 64, 96, 2


def random(seeded: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=seeded)


def assert_near(
    out: torch.Tensor, exact: torch.Tensor, inputs: torch.Tensor, relative: float
) -> None:
    """Of one size with the exact result, and as near as ``relative`` to it in the mean square.

    ``inputs`` has the dtype whose rounding is allowed on top.
    """
    assert out.shape == exact.shape
    error = (out.double() - exact.double()).norm() / exact.double().norm()
    assert error <= relative + torch.finfo(inputs.dtype).eps, f"relative error {error:.2e}"


# ---- linear layers ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize(("m", "n", "k"), [*SHAPES, (3, 7, 33)])
def test_weight_packed_linear(
    m: int, n: int, k: int, is_packed: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    weight, x = random(seeded, n, k).to(dtype), random(seeded, m, k).to(dtype)
    bias = random(seeded, n).to(dtype)
    held = C.convert_weight_packed(weight) if is_packed else weight
    assert held.shape == weight.shape
    for _ in range(2):  # the second product has the packed weight
        out = torch.empty(m, n, dtype=dtype)
        C.weight_packed_linear(out, x, held, bias.float(), is_packed)
        assert_accurate(out, linear, x, weight, bias)


@pytest.mark.parametrize("is_packed", [True, False])
def test_bmm_of_heads_inside_tokens(
    is_packed: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    heads, m, n, k = 3, 5, 32, 48
    x = random(seeded, m, heads, k).to(dtype).transpose(0, 1)
    weight = random(seeded, heads, n, k).to(dtype)
    out = torch.empty(m, heads, n, dtype=dtype).transpose(0, 1)
    held = C.convert_weight_packed(weight) if is_packed else weight
    C.bmm_cpu(out, x, held, is_packed, None)
    assert_accurate(out, lambda x, w: x @ w.transpose(1, 2), x, weight)


def test_bmm_of_fp8_weights_with_a_scale(seeded: torch.Generator) -> None:
    heads, m, n, k = 3, 5, 32, 48
    x = random(seeded, heads, m, k).bfloat16()
    weight, scale = random(seeded, heads, n, k).to(torch.float8_e4m3fn), torch.tensor(0.37)
    out = torch.empty(heads, m, n, dtype=torch.bfloat16)
    C.bmm_cpu(out, x, C.convert_weight_packed(weight), True, scale)
    exact = x.double() @ (weight.double() * 0.37).transpose(1, 2)
    assert_near(out, exact, x, 0.004)


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
def test_int8_scaled_mm_with_quant(
    is_packed: bool, out_dtype: torch.dtype, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    m, n, k = 9, 96, 256
    codes = torch.randint(-127, 128, (n, k), generator=seeded).to(torch.int8)
    scales = random(seeded, n, 1).abs() / 500 + 0.001
    x, bias = random(seeded, m, k).to(dtype), random(seeded, n)
    held = C.convert_weight_packed(codes) if is_packed else codes
    out = C.int8_scaled_mm_with_quant(x, held, scales, bias, out_dtype, is_packed)
    assert out.dtype == out_dtype
    rows, row_scales = int8_activations(x, "int8_token", 1.0, 0)
    exact = (rows @ codes.double().t()) * row_scales * scales.double().t() + bias.double()
    assert_near(out, exact, x.to(out_dtype), 1e-6 + torch.finfo(dtype).eps)


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("block", [(64, 128), (32, 32), (1, 256)])
def test_fp8_scaled_mm(
    block: tuple[int, int], is_packed: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    m, n, k = 7, 96, 320
    weight = random(seeded, n, k).to(torch.float8_e4m3fn)
    scales = random(seeded, -(-n // block[0]), -(-k // block[1])).abs() + 0.1
    x, bias = random(seeded, m, k).to(dtype), random(seeded, n)
    held = C.convert_weight_packed(weight) if is_packed else weight
    whole = scales.repeat_interleave(block[0], 0)[:n].repeat_interleave(block[1], 1)[:, :k]
    exact = x.double() @ (weight.double() * whole.double()).t() + bias.double()
    for out_dtype in (dtype, torch.float32):
        out = C.fp8_scaled_mm_cpu(x, held, scales, block, bias, out_dtype, is_packed)
        assert out.dtype == out_dtype
        assert_near(out, exact, x, 1e-6)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("static", [False, True])
def test_fp8_scaled_mm_with_quant(
    groups: int, static: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    m, n, k = 7, 64, 256
    weight = random(seeded, n, k).to(torch.float8_e4m3fn)
    scales = random(seeded, n, groups).abs() + 0.1
    x, bias = random(seeded, m, k).to(dtype), random(seeded, n)
    packed, packed_scales = C.float8_linear_prepack_cpu(weight, scales)
    assert packed.shape[0] * packed.shape[-1] == n  # where the host reads n
    assert packed_scales.shape == (n // 32, groups, 32)
    given = torch.tensor([0.02]) if static else None
    out = C.fp8_scaled_mm_with_quant(x, given, not static, packed, packed_scales, bias, dtype)
    row_scales = given if static else x.float().abs().amax(1, keepdim=True) / 448
    rows = (x.float() / row_scales).clamp(-448, 448).to(torch.float8_e4m3fn)
    whole = scales.repeat_interleave(k // groups, 1)
    exact = (rows.double() * row_scales.double()) @ (weight.double() * whole.double()).t()
    assert_near(out, exact + bias.double(), x, 1e-5)


def words(codes: torch.Tensor, dim: int, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Codes of 4 bits, eight to an int32 along ``dim``; code order[i] in the i-th four bits."""
    eights = codes.movedim(dim, -1).unflatten(-1, (-1, 8))[..., list(order)].long()
    packed = (eights << torch.arange(0, 32, 4)).sum(-1)
    return packed.to(torch.int32).movedim(-1, dim).contiguous()


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def int4_weight(
    seeded: torch.Generator, method: int, groups: int, *shape: int
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """fp64 [..., n, k], and the checkpoint's words, zeros and scales of AWQ or GPTQ."""
    *experts, n, k = shape
    codes = torch.randint(0, 16, (*experts, k, n), generator=seeded)
    zeros = torch.randint(1, 16, (*experts, groups, n), generator=seeded)
    scales = (random(seeded, *experts, groups, n).abs() / 10 + 0.01).bfloat16()
    spread = [t.repeat_interleave(k // groups, -2).double() for t in (zeros, scales)]
    weight = ((codes - spread[0]) * spread[1]).transpose(-1, -2)
    if method == AWQ:
        return weight, (words(codes, -1, AWQ_ORDER), words(zeros, -1, AWQ_ORDER), scales)
    return weight, (words(codes, -2), words(zeros - 1, -1), scales)


@pytest.mark.parametrize("method", [AWQ, GPTQ])
@pytest.mark.parametrize("groups", [1, 4])
def test_int4_scaled_mm(
    method: int, groups: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    m, n, k = 6, 64, 256
    weight, checkpoint = int4_weight(seeded, method, groups, n, k)
    x, bias = random(seeded, m, k).to(dtype), random(seeded, n)
    packed, zeros, scales = C.convert_weight_packed_scale_zp(*checkpoint, method)
    assert scales.shape == zeros.shape == (n // 32, groups, 32)
    out = C.int4_scaled_mm_cpu(x, packed, zeros, scales, bias)
    assert_near(out, x.double() @ weight.t() + bias.double(), x, 0.01)  # int8 activations


@pytest.mark.parametrize("with_zeros", [True, False])
@pytest.mark.parametrize("groups", [1, 4])
def test_cpu_gemm_wna16(
    with_zeros: bool, groups: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    m, n, k = 6, 64, 256
    codes = torch.randint(0, 16, (k, n), generator=seeded)
    zeros = torch.randint(0, 16, (groups, n), generator=seeded) if with_zeros else None
    scales = (random(seeded, groups, n).abs() / 10 + 0.01).to(dtype)
    x, bias = random(seeded, m, k).to(dtype), random(seeded, n).to(dtype)
    blocks = words(codes, -1).view(k, -1, 2).permute(1, 0, 2).reshape(-1, 2 * k)
    out = torch.empty(m, n, dtype=dtype)
    given = None if zeros is None else words(zeros, -1)
    C.cpu_gemm_wna16(x, blocks.contiguous(), out, scales, given, bias, 8, "vec")
    zero = 8 if zeros is None else zeros.repeat_interleave(k // groups, 0).double()
    weight = (codes - zero) * scales.repeat_interleave(k // groups, 0).double()
    assert_near(out, x.double() @ weight + bias.double(), x, 1e-4)  # int16 activations


# ---- what a packed weight is --------------------------------------------------------------------


def test_a_packed_weight_is_its_storage(seeded: torch.Generator) -> None:
    """Parameters and views are the weight, copies are not, and are refused."""
    weight, x = random(seeded, 32, 64), random(seeded, 3, 64)
    packed = C.convert_weight_packed(weight)
    out, again = torch.empty(3, 32), torch.empty(3, 32)
    C.weight_packed_linear(out, x, torch.nn.Parameter(packed, requires_grad=False), None, True)
    C.weight_packed_linear(again, x, packed.view(32, 64), None, True)
    assert torch.equal(out, again)
    for other in (packed.clone(), weight, packed[1:]):
        with pytest.raises(ValueError, match="was not packed, or was copied"):
            C.weight_packed_linear(out, x, other, None, True)


def test_a_packed_weight_is_kept_once(seeded: torch.Generator) -> None:
    """Its first product gives the memory of the codes back: they read as zeros from then on."""
    weight = random(seeded, 512, 512)
    packed = C.convert_weight_packed(weight)
    assert torch.equal(packed, weight)
    out = torch.empty(1, 512)
    C.weight_packed_linear(out, weight[:1], packed, None, True)
    assert torch.count_nonzero(packed) == 0
    # The host copies a tensor over another of the same size instead of taking it.
    assert packed.untyped_storage().nbytes() > weight.untyped_storage().nbytes()
    view = packed[0]
    del packed
    gc.collect()
    assert torch.count_nonzero(view) == 0  # alive with its last view


def test_other_scales_are_refused(seeded: torch.Generator) -> None:
    codes = torch.randint(-127, 128, (32, 64), generator=seeded).to(torch.int8)
    packed, x, scales = C.convert_weight_packed(codes), random(seeded, 3, 64), torch.rand(32) + 0.1
    out = C.int8_scaled_mm_with_quant(x, packed, scales, None, torch.float32, True)
    same = C.int8_scaled_mm_with_quant(x, packed, scales.clone(), None, torch.float32, True)
    assert torch.equal(out, same)
    with pytest.raises(ValueError, match="packed with other scales"):
        C.int8_scaled_mm_with_quant(x, packed, scales * 2, None, torch.float32, True)


def test_a_weight_of_another_packing_op_is_refused(seeded: torch.Generator) -> None:
    packed = C.convert_weight_packed(torch.zeros(8, 32, dtype=torch.int32))
    empty = torch.empty(0)
    with pytest.raises(ValueError, match="convert_weight_packed_scale_zp"):
        C.int4_scaled_mm_cpu(random(seeded, 3, 64), packed, empty, empty, None)


# ---- experts ------------------------------------------------------------------------------------

GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": gated(silu),
    "gelu": gated(gelu),
    "gelu_tanh": gated(gelu_tanh),
    "swigluoai": lambda both: swigluoai(torch.cat((both[::2], both[1::2]))),  # in turns
    "oai_halves": swigluoai,
}


class Case:
    """Random experts' weights, biases, tokens and routing."""

    def __init__(self, seeded: torch.Generator, dtype: torch.dtype, tokens: int = 6) -> None:
        self.gate_up = random(seeded, EXPERTS, 2 * INTERMEDIATE, HIDDEN).to(dtype) / 4
        self.down = random(seeded, EXPERTS, HIDDEN, INTERMEDIATE).to(dtype) / 4
        self.biases = (
            random(seeded, EXPERTS, 2 * INTERMEDIATE).to(dtype),
            random(seeded, EXPERTS, HIDDEN).to(dtype),
        )
        self.x = random(seeded, tokens, HIDDEN).to(dtype)
        self.weights = torch.rand(tokens, TOP_K, generator=seeded)
        order = [torch.randperm(EXPERTS, generator=seeded)[:TOP_K] for _ in range(tokens)]
        self.ids = torch.stack(order).int()
        self.out = torch.empty_like(self.x)

    def exact(
        self,
        gate: str,
        gate_up: torch.Tensor | None = None,
        down: torch.Tensor | None = None,
        bias: bool = False,
        weighted: bool = True,
        only: int | None = None,
    ) -> torch.Tensor:
        """In fp64; ``only``: the i-th expert of each token alone, weighted before and not after."""
        biases = [b.double() for b in self.biases] if bias else [None, None]
        x, weights, ids = self.x.double(), self.weights.double(), self.ids
        if only is not None:
            x, ids, weighted = x * weights[:, only, None], ids[:, only, None], False
        return mixture(
            x,
            (self.gate_up if gate_up is None else gate_up).double(),
            (self.down if down is None else down).double(),
            weights if weighted else torch.ones_like(weights),
            ids,
            GATES[gate],
            *biases,
        )

    def fused(
        self,
        method: int,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        scales: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
        block: list[int] | None = None,
        bias: bool = False,
        limits: tuple[float | None, float | None] = (None, None),
        is_packed: bool = True,
    ) -> torch.Tensor:
        """As the host's wrapper calls it."""
        biases = self.biases if bias else (None, None)
        C.fused_experts_cpu(
            *(self.out, self.x, gate_up, down, self.weights, self.ids, method, *scales),
            *(None, None, None, block, *biases, *limits, is_packed),
        )
        return self.out


def prepacked(weight: torch.Tensor) -> torch.Tensor:
    """The host's cpu_prepack_moe_weight."""
    packed = torch.empty_like(weight)
    C.prepack_moe_weight(weight, packed, "vec")
    return packed


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_tanh", "swigluoai"])
@pytest.mark.parametrize("skip_weighted", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_cpu_fused_moe(
    act: str, skip_weighted: bool, bias: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    case = Case(seeded, dtype)
    w13, w2 = prepacked(case.gate_up), prepacked(case.down)
    biases = case.biases if bias else (None, None)
    for _ in range(2):
        C.cpu_fused_moe(
            *(case.out, case.x, w13, w2, *biases),
            *(case.weights, case.ids, skip_weighted, act, "vec"),
        )
        exact = case.exact(act, bias=bias, weighted=not skip_weighted)
        assert_near(case.out, exact, case.x, 1e-6)


@pytest.mark.parametrize("is_packed", [True, False])
def test_fused_experts_unquantized(
    is_packed: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    case = Case(seeded, dtype)
    weights = (case.gate_up, case.down)
    if is_packed:
        weights = (C.convert_weight_packed(case.gate_up), C.convert_weight_packed(case.down))
    out = case.fused(UNQUANTIZED, *weights, is_packed=is_packed)
    assert_near(out, case.exact("silu"), case.x, 1e-6)


def test_fused_experts_int8(dtype: torch.dtype, seeded: torch.Generator) -> None:
    case = Case(seeded, dtype)
    scales = [w.float().abs().amax(-1, keepdim=True) / 127 for w in (case.gate_up, case.down)]
    codes = [
        (w.float() / s).round().to(torch.int8)
        for w, s in zip((case.gate_up, case.down), scales, strict=True)
    ]
    out = case.fused(INT8, *map(C.convert_weight_packed, codes), (scales[0], scales[1]))
    exact = case.exact("silu", codes[0] * scales[0], codes[1] * scales[1])
    assert_near(out, exact, case.x, 0.02)  # int8 activations, twice


def test_fused_experts_fp8(dtype: torch.dtype, seeded: torch.Generator) -> None:
    case = Case(seeded, dtype)
    block = (32, 32)
    codes = [w.to(torch.float8_e4m3fn) for w in (case.gate_up, case.down)]
    scales, whole = [], []
    for code in codes:
        _, n, k = code.shape
        scale = torch.rand(EXPERTS, n // 32, k // 32, generator=seeded) + 0.5
        scales.append(scale)
        spread = scale.repeat_interleave(32, 1).repeat_interleave(32, 2)
        whole.append(code.double() * spread.double())
    packed = map(C.convert_weight_packed, codes)
    out = case.fused(FP8, *packed, (scales[0], scales[1]), list(block))
    assert_near(out, case.exact("silu", *whole), case.x, 1e-6)


@pytest.mark.parametrize("method", [AWQ, GPTQ])
def test_fused_experts_int4(method: int, dtype: torch.dtype, seeded: torch.Generator) -> None:
    case = Case(seeded, dtype)
    shapes = [(EXPERTS, 2 * INTERMEDIATE, HIDDEN), (EXPERTS, HIDDEN, INTERMEDIATE)]
    weights, packed, scales = [], [], []
    for shape in shapes:
        weight, checkpoint = int4_weight(seeded, method, 2, *shape)
        weights.append(weight)
        blocked, _, blocked_scales = C.convert_weight_packed_scale_zp(*checkpoint, method)
        packed.append(blocked)
        scales.append(blocked_scales)
    out = case.fused(INT4, *packed, (scales[0], scales[1]))
    assert_near(out, case.exact("silu", *weights), case.x, 0.03)  # int8 activations, twice


@pytest.mark.parametrize("oai", [True, False])
def test_fused_experts_mxfp4(oai: bool, dtype: torch.dtype, seeded: torch.Generator) -> None:
    case = Case(seeded, dtype)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat((values, -values)).double()
    pairs, exponents, weights = [], [], []
    for weight in (case.gate_up, case.down):
        codes = torch.randint(0, 16, weight.shape, generator=seeded)
        exponent = torch.randint(121, 126, (*weight.shape[:2], weight.shape[2] // 32))
        pairs.append((codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8))
        exponents.append(exponent.to(torch.uint8))
        spread = torch.exp2(exponent.double() - 127).repeat_interleave(32, 2)
        weights.append(values[codes] * spread)
    out = case.fused(
        MXFP4,
        *map(C.convert_weight_packed, pairs),
        (C.convert_scale_packed(exponents[0]), C.convert_scale_packed(exponents[1])),
        bias=oai,
        limits=(1.702, 7.0) if oai else (None, None),
    )
    exact = case.exact("swigluoai" if oai else "silu", *weights, bias=oai)
    assert_near(out, exact, case.x, 1e-3)


@pytest.mark.parametrize("on_input", [True, False])
@pytest.mark.parametrize("group", [-1, 32])
@pytest.mark.parametrize(("kind", "gate"), [(0, "silu"), (1, "oai_halves"), (2, "silu")])
def test_dynamic_4bit_int_moe(
    kind: int, gate: str, group: int, on_input: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    """Weights as the host packs them, with torch's own op."""
    case = Case(seeded, dtype)
    weights, packed = [], []
    for weight in (case.gate_up, case.down):
        experts = []
        _, n, k = weight.shape
        size = k if group == -1 else group
        codes = torch.randint(-8, 8, weight.shape, generator=seeded)
        scales = (torch.rand(EXPERTS, n, k // size, generator=seeded) / 20 + 0.01).bfloat16()
        weights.append(codes.double() * scales.double().repeat_interleave(size, 2))
        for code, scale in zip(codes + 8, scales, strict=True):
            pairs = (code[:, ::2] | code[:, 1::2] << 4).to(torch.uint8)
            kept = scale.float() if group == -1 else scale
            pack = torch.ops.aten._dyn_quant_pack_4bit_weight
            experts.append(pack(pairs, kept, None, size, k, n))
        packed.append(torch.stack(experts))
    x = case.x
    out = C.dynamic_4bit_int_moe(
        *(x, case.ids.long(), case.weights, *packed, HIDDEN, INTERMEDIATE, group, on_input, kind)
    )
    exact = case.exact(gate, *weights)
    if on_input:
        exact = case.exact(gate, *weights, only=0) + case.exact(gate, *weights, only=1)
    assert_near(out, exact, x, 0.03)


def test_what_experts_do_not_do_is_said(seeded: torch.Generator) -> None:
    case = Case(seeded, torch.float32)
    with pytest.raises(NotImplementedError, match="cpu_has_amx_fp8"):
        case.fused(FP8_ACTIVATIONS, case.gate_up, case.down)
    with pytest.raises(NotImplementedError, match=r"alpha 1\.5"):
        case.fused(UNQUANTIZED, case.gate_up, case.down, limits=(1.5, 7.0), is_packed=False)
    with pytest.raises(ValueError, match="w1_scale is missing"):
        case.fused(INT8, case.gate_up.char(), case.down.char(), is_packed=False)
    with pytest.raises(ValueError, match="was not packed"):
        C.cpu_fused_moe(
            *(case.out, case.x, case.gate_up, case.down, None, None),
            *(case.weights, case.ids, False, "silu", "vec"),
        )


def test_no_op_promises_kernels_of_the_hosts() -> None:
    assert C.cpu_has_amx_fp8() is False
    assert C.cpu_attn_has_isa("vec")
    assert not C.cpu_attn_has_isa("rvv")
