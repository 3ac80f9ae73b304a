"""A checkpoint's codes as plain tensors, for providers that pack them in an order of theirs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cpu_backend.ops import Codes, kept_bits
from cpu_backend.providers.interface import Matrix, Unsupported

# Where AutoAWQ keeps column 0, 1, ... of eight in a word of 4-bit codes.
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class PlainCodes:
    """weight[o, i] = scales[o, g] * (codes[o, i] - zeros[o, g]), g the group of channel i.

    codes int32 [out, in], 0 to 2^bits - 1; scales, zeros fp32 [out, groups] of ``size`` channels.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    size: int
    bits: int

    def signed(self) -> Tensor:
        """int8 [out, in] whose zero is 0.  Unsupported where it lies elsewhere."""
        middle = 2 ** (self.bits - 1)
        if not (self.zeros == middle).all():
            raise Unsupported("does not multiply codes with zero points by 8-bit activations")
        return (self.codes - middle).to(torch.int8)

    def per_channel(self) -> Tensor:
        """The scales [out].  Unsupported where a channel has several."""
        if self.scales.shape[1] != 1:
            raise Unsupported(f"does not multiply {self.bits}-bit codes in groups of {self.size}")
        return self.scales[:, 0]


def plain(matrix: Matrix) -> PlainCodes:
    """Raises Unsupported for what are no integers or no neighbouring groups."""
    codes, groups = matrix.codes, matrix.groups
    bits = 4 if codes.bits <= 4 else 8
    if groups.channels is not None:
        raise Unsupported("does not have groups in the order of activations (desc_act)")
    if codes.table is not None:
        raise Unsupported("does not multiply codes of a table (MXFP4, NVFP4, IQ types of GGUF)")
    if codes.tensor.dtype == torch.int8 and codes.order == "bytes":
        numbers = codes.tensor.int()
    elif codes.tensor.dtype in (torch.uint8, torch.int32):
        numbers = _numbers(codes, matrix.in_features)
    else:
        raise Unsupported(f"does not multiply weights of {str(codes.tensor.dtype)[6:]}")
    scales = groups.scales.t().float()
    if groups.zeros is None:
        zeros = torch.full_like(scales, 2 ** (bits - 1))
        numbers = numbers + (2 ** (bits - 1) - 2 ** (kept_bits(codes.bits) - 1))
    elif groups.zero_kind == "point":
        zeros = groups.zeros.t().float()
    elif groups.zero_kind == "offset":
        zeros = -groups.zeros.t().float() / scales
    else:
        raise Unsupported("does not have codes in two levels (cpu_int4)")
    return PlainCodes(numbers + codes.add, scales, zeros, groups.size, bits)


def _numbers(codes: Codes, in_features: int) -> Tensor:
    """int32 [out, in] of codes in bytes or in words."""
    tensor, bits = codes.tensor, codes.bits
    if codes.order == "bytes":
        return tensor.int()
    if codes.order == "words_of_k" and 32 % bits == 0:
        return _unpack(tensor, bits)[:, :in_features]
    if codes.order == "words_of_n" and 32 % bits == 0:
        return _unpack(tensor, bits).t()
    if codes.order == "words_of_n_awq":
        numbers = _unpack(tensor, bits)
        return numbers.view(len(tensor), -1, 8)[..., list(AWQ_ORDER)].flatten(1).t()
    raise Unsupported(f"does not read codes of {bits} bits in {codes.order}")


def _unpack(words: Tensor, bits: int) -> Tensor:
    """int32 [rows, words] to [rows, words * 32 / bits], lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((words[..., None] >> shifts) & (2**bits - 1)).flatten(1)
