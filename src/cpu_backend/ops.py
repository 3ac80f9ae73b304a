"""The native library: loading it, and the names of ``torch.ops.cpu_backend`` but those of
``sparse_ops`` and ``state_ops``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from cpu_backend import native, products
from cpu_backend.errors import ConfigError
from cpu_backend.step_recording import StepRecording as StepRecording

if TYPE_CHECKING:
    import numpy as np


@functools.cache
def load() -> native.Library:
    """Load the library once; the ops of ``_C`` and ``cpu_backend`` exist afterwards.

    Raises ConfigError when it is missing, built for another torch, or asked for an instruction
    set that this CPU or build lacks.
    """
    path = native.ops_library(torch.__version__.partition("+")[0])
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise native.load_failure(error) from error
    try:
        description = str(torch.ops.cpu_backend.describe())
    except (ValueError, RuntimeError) as error:
        raise ConfigError(str(error).splitlines()[0]) from error
    return native.Library.parse(description)


def bind_threads(cpus: tuple[int, ...]) -> bool:
    """One compute thread on each CPU; False where the system forbids it (the count still holds)."""
    return bool(torch.ops.cpu_backend.bind_threads(list(cpus)))


def set_num_threads(threads: int) -> None:
    """Size of the thread pool, unbound."""
    torch.ops.cpu_backend.set_num_threads(threads)


def bind_memory(nodes: tuple[int, ...]) -> str:
    """'bind', 'preferred', or why this process's memory cannot be bound to the NUMA nodes."""
    return str(torch.ops.cpu_backend.bind_memory(list(nodes)))


def keep_top(logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None) -> torch.Tensor:
    """Top-k and top-p in place: logits [requests, vocabulary] fp32 outside the choice become -inf.

    k [requests] int32 (the vocabulary's size: no limit), p [requests] fp32 (1: no limit).
    """
    torch.ops.cpu_backend.keep_top_.default(logits, k, p)
    return logits


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    k: torch.Tensor | None,
    p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seeds: torch.Tensor,
) -> torch.Tensor:
    """One token per row, int64 [requests]; logits [requests, vocabulary] fp32 are overwritten.

    A row is divided by its temperature (fp32; below 1e-5 its largest logit is taken at once),
    filtered by min-p (fp32, 0: no limit), top-k and top-p (as in ``keep_top``), and one token
    drawn from the softmax of what is left (Gumbel-max, with a generator keyed by its int64 seed).
    """
    tokens: torch.Tensor = torch.ops.cpu_backend.sample_.default(
        logits, temperature, k, p, min_p, seeds
    )
    return tokens


def apply_penalties(
    logits: torch.Tensor,
    prompt: torch.Tensor,
    output: torch.Tensor,
    output_start: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> None:
    """Penalties of the OpenAI API and of CTRL (Keskar et al. 2019) on logits, in place.

    logits [requests, vocabulary] fp32; prompt [requests, tokens] int64; output int64, the tokens
    of all requests, those of request r from output_start[r] to output_start[r + 1]; penalties
    [requests] fp32.  What is not in the vocabulary (padding, placeholders) is passed over.
    """
    torch.ops.cpu_backend.apply_penalties_.default(
        logits, prompt, output, output_start, repetition, frequency, presence
    )


def look_up_drafts(
    tokens: np.ndarray,
    lengths: np.ndarray,
    requests: list[int],
    match: tuple[int, int],
    drafts: int,
    max_length: int,
) -> list[list[int]]:
    """For each of the requests at most ``drafts`` tokens that followed its last ones before.

    tokens [requests, tokens] int32, of which the first lengths [requests] count; match: how many of
    a request's last tokens must have occurred before, at least and at most.  Of the places where
    the most of them did the first counts.  No request is drafted beyond ``max_length`` tokens.
    """
    found = torch.ops.cpu_backend.look_up_drafts.default(
        torch.from_numpy(tokens), torch.from_numpy(lengths), requests, *match, drafts, max_length
    )
    return [[token for token in row if token >= 0] for row in found.tolist()]


def gemma_rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """RMS norm of x [..., hidden], times 1 + weight [hidden]; one rounding."""
    out = torch.empty(x.shape, dtype=x.dtype)
    torch.ops.cpu_backend.gemma_rms_norm.default(out, x, weight, epsilon)
    return out


def fused_add_gemma_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> None:
    """residual += x, then x = ``gemma_rms_norm`` of the sum, both [..., hidden] and in place."""
    torch.ops.cpu_backend.fused_add_gemma_rms_norm.default(x, residual, weight, epsilon)


def gated_rms_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    *,
    gate_first: bool,
    act: str,
) -> torch.Tensor:
    """RMS norm of each head of x [tokens, heads, channels], times weight and act(gate).

    gate has the shape of x, weight is [channels] for all heads, or of heads * channels; act is
    "silu" or "sigmoid".  With ``gate_first`` the norm is of x * act(gate).  Dense result, one
    rounding.
    """
    out = torch.empty(x.shape, dtype=x.dtype)
    torch.ops.cpu_backend.gated_rms_norm.default(out, x, gate, weight, epsilon, gate_first, act)
    return out


def layer_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    epsilon: float,
) -> torch.Tensor:
    """Layer norm of x [..., hidden], or of x + residual rounded to their dtype.

    residual has the shape of x; weight and bias are [hidden]; all have the dtype of x.  Dense
    result, one rounding.
    """
    out = torch.empty(x.shape, dtype=x.dtype)
    torch.ops.cpu_backend.layer_norm.default(out, x, residual, weight, bias, epsilon)
    return out


def lora_shrink(
    y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, adapters: torch.Tensor, scale: float
) -> None:
    """y [tokens, rank] = x @ A.T * scale; zeros where a token has no adapter.

    y: fp32; x: [tokens, inputs]; weights: the A of all adapters, [adapters, rank, inputs] or
    [adapters, 1, rank, inputs], of x's dtype; adapters: [tokens] int64, that of each, or negative.
    """
    torch.ops.cpu_backend.lora_shrink.default(y, x, weights, adapters, scale)


def lora_expand(
    y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, adapters: torch.Tensor
) -> None:
    """y [tokens, outputs] += x @ B.T, rounded once; nothing where a token has no adapter.

    x: [tokens, rank] fp32; weights: the B of all adapters, [adapters, outputs, rank] or
    [adapters, 1, outputs, rank]; y: of their dtype or fp32; of outputs and columns the fewer count;
    adapters: as of :func:`lora_shrink`.
    """
    torch.ops.cpu_backend.lora_expand.default(y, x, weights, adapters)


def read_bytes(data: torch.Tensor) -> int:
    """Read a contiguous tensor once with all threads and do nothing else: the bandwidth limit.

    Returns the exclusive or of its 32-bit words (its size in bytes must be a multiple of 4).
    """
    return int(torch.ops.cpu_backend.read_bytes(data))


def multiply_adds(steps: int) -> int:
    """Run ``steps`` rounds of independent fp32 multiply-adds in the registers of every thread.

    Returns the floating-point operations done, two per multiply-add: the arithmetic limit.
    """
    return int(torch.ops.cpu_backend.multiply_adds(steps))


def abandon_groups() -> None:
    """End the waits of all ranks that compute together with this process, which cannot go on."""
    if hasattr(torch.ops.cpu_backend, "abandon_groups"):
        torch.ops.cpu_backend.abandon_groups()


class PackedLinear(products.Linear):
    """A linear weight [out_features, in_features] in this target's packed order.

    Owns the native copy; the tensor it was made from may be freed.  With ``float_output`` results
    are fp32 whatever the weight's dtype.  ``parts`` = 2 packs two weights stacked along
    out_features side by side: nothing changes for a plain call, and ``act_and_mul`` becomes
    possible.
    """

    def __init__(self, weight: torch.Tensor, float_output: bool = False, parts: int = 1) -> None:
        handle = torch.ops.cpu_backend.pack_linear(weight, parts)
        self._own(handle, weight.shape[0], float_output, parts)

    def _own(self, handle: int, out_features: int, float_output: bool, parts: int = 1) -> None:
        self._handle = handle
        self.out_features = out_features
        self.parts = parts
        self._float_output = float_output
        self._release = torch.ops._C.release_dnnl_matmul_handler.default
        self._linear = torch.ops.cpu_backend.linear.default

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """Bytes of the packed weight, scales included."""
        return int(torch.ops.cpu_backend.packed_bytes(self._handle))

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [..., in_features] to [..., out_features]; ``weight`` is the host's and not read."""
        result: torch.Tensor = self._linear(
            x, self._handle, self.out_features, bias, self._float_output
        )
        return result

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows ``ids`` [...] of the weight, int64, as [..., in_features]: an embedding look-up."""
        result: torch.Tensor = torch.ops.cpu_backend.packed_rows.default(ids, self._handle)
        return result

    def add_to(
        self, residual: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        """residual [..., out_features] += linear(x), to the bit what the two steps would give.

        ``residual`` may have strided rows and must not share memory with ``x``.
        """
        torch.ops.cpu_backend.linear_add(residual, x, self._handle, bias)

    def act(
        self, out: torch.Tensor, x: torch.Tensor, activation: str, bias: torch.Tensor | None = None
    ) -> None:
        """out [..., out_features] = act(linear(x)), to the bit what the two steps would give.

        ``activation`` is silu, gelu, gelu_tanh or gelu_quick.
        """
        torch.ops.cpu_backend.linear_act(out, x, self._handle, bias, activation)

    def act_and_mul(
        self, out: torch.Tensor, x: torch.Tensor, activation: str, bias: torch.Tensor | None = None
    ) -> None:
        """out [..., out_features / 2] = act(first half of linear(x)) * second half.

        What the separate activation gives, in 16 bits to the bit; ``activation`` is silu, gelu,
        gelu_tanh or gelu_quick.
        """
        torch.ops.cpu_backend.linear_act_and_mul(out, x, self._handle, bias, activation)

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", 0):
            self._release(handle)


class PackedHeads:
    """Linear weights [heads, out_features, in_features] for a product of each head's own."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weights = [PackedLinear(head) for head in weight]  # kept alive
        self._handles = [packed._handle for packed in self._weights]

    def __call__(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """out [tokens, heads, out_features] = x [tokens, heads, in_features] times each head's
        weight, to the bit what PackedLinear gives; both dense in their last dimension."""
        torch.ops.cpu_backend.linear_heads.default(out, x, self._handles)


def kept_bits(bits: int) -> int:
    """The width in which a packed weight keeps codes of ``bits``, 1 to 8."""
    return max(bits, 2) if bits <= 4 else 8


@dataclass(frozen=True)
class Codes:
    """The integer codes of a weight as a checkpoint has them.

    order: "bytes", uint8, int8 or float8_e4m3fn [out, in]; "pairs_of_k", uint8 [out, in / 2] of two
    codes of 4 bits, the first one low; "words_of_k", int32 [out, words], a stream of bits along
    in_features, lowest first; "words_of_n" and "words_of_n_awq", int32 [in, words], along
    out_features.  Any strides.  bits: 2 to 8; more than 4 are kept as 8.
    add: what turns a code into the kept, unsigned one: 128 for int8, 8 for -8 ... 7,
    128 - 2^(bits - 1) for the 5 to 7 bits of a symmetric scheme.
    table: uint8 [16], the 8-bit codes that codes of up to 4 bits stand for, without zeros.
    """

    tensor: torch.Tensor
    order: str
    bits: int
    add: int = 0
    table: torch.Tensor | None = None


@dataclass(frozen=True)
class GroupScales:
    """What a group of ``size`` input channels and a column share.

    scales [groups, out] of float32, bfloat16 or float16, kept as they are.  Without ``zeros`` the
    weight is scale * (code - 2^(kept bits - 1)), or 128 with a table.  With them ``zero_kind``
    says what they are:
    "point"   whole numbers, shape and dtype of the scales: scale * (code - zero)
    "offset"  any numbers, the same: scale * code + zero
    "levels"  uint16 step + 256 * base, one row for every 32 channels, codes of 4 bits, groups of at
              most 128 channels: scale * (step * code + base - 128), 15 * step + base <= 255
    channels: int32, the input channel of each position of the groups in turn, or -1 for none;
    only for weights whose groups are not neighbours (act-order).
    """

    scales: torch.Tensor
    size: int
    zeros: torch.Tensor | None = None
    zero_kind: str = "point"
    channels: torch.Tensor | None = None


def quantize_weight(
    weight: torch.Tensor, bits: int, group: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """weight [out, in] of float32, bfloat16 or float16 to codes [out, in] uint8 and scales
    [out, groups] fp16, by the rules of csrc/kernels/quant_weight.h.

    bits 8: weight = scale * (code - 128).  4: with levels [out, pieces of 32 channels] as in
    GroupScales, and the relative error (Frobenius norm).  Raises ValueError for a group of more
    than 256 channels, and of 4-bit codes that is neither a multiple of 32 nor all channels.
    """
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor, float] = (
        torch.ops.cpu_backend.quantize_weight(weight, bits, group)
    )
    return result


@dataclass(frozen=True)
class Activations:
    """How activations become integers; the names are those of csrc/core/quant.h.

    "int16" and "int8": per row and up to 128 channels of a group, for weight-only schemes;
    "int8_token", "int8_token_azp": per row; "int8_static", "int8_static_azp": as given here.
    "float": not at all, fp32, for float8 weights.
    """

    kind: str = "int16"
    scale: float = 1.0
    zero: int = 0


class QuantizedLinear(PackedLinear):
    """A linear weight of integer codes, multiplied as it is."""

    def __init__(
        self,
        codes: Codes,
        groups: GroupScales,
        in_features: int,
        activations: Activations = Activations(),
        parts: int = 1,
        float_output: bool = False,
    ) -> None:
        handle = torch.ops.cpu_backend.pack_quantized(
            codes.tensor,
            codes.order,
            codes.bits,
            codes.add,
            codes.table,
            in_features,
            groups.scales,
            groups.zeros,
            groups.zero_kind,
            groups.channels,
            groups.size,
            activations.kind,
            activations.scale,
            activations.zero,
            parts,
        )
        self._own(handle, groups.scales.shape[1], float_output, parts)


class Experts(products.Experts):
    """The gated feed-forward networks of a mixture of experts.

    gate_up  per expert [2 * intermediate, hidden], the gate first, in 2 parts
    down     per expert [hidden, intermediate]
    Weights of each list have one shape and one kind; ``activation`` is silu, gelu or gelu_tanh.
    """

    def __init__(
        self, gate_up: Sequence[PackedLinear], down: Sequence[PackedLinear], activation: str
    ) -> None:
        # Which keeps them alive; lists of different lengths the op refuses in a sentence.
        self.layers = list(zip(gate_up, down, strict=False))
        self._gate_up = [weight._handle for weight in gate_up]
        self._down = [weight._handle for weight in down]
        self.activation = activation

    def __call__(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        gate_up_bias: torch.Tensor | None = None,
        down_bias: torch.Tensor | None = None,
    ) -> None:
        """x [tokens, hidden] to out, the weighted sum of its experts' outputs, alike in shape.

        topk_weights fp32 and topk_ids int32 [tokens, top_k]; a negative id adds nothing, a too
        large one raises IndexError.  gate_up_bias [experts, 2 * intermediate], down_bias
        [experts, hidden], in the dtype of x.  A token's result does not depend on the others.
        """
        torch.ops.cpu_backend.experts.default(
            out,
            x,
            self._gate_up,
            self._down,
            gate_up_bias,
            down_bias,
            topk_weights,
            topk_ids,
            self.activation,
        )
