"""fp8 and microscaling checkpoints, whose activations stay in the model's own dtype.

A checkpoint made for fp8 activations (W8A8) is more accurate this way than as intended: CPUs have
no fp8 products, so rounding activations would only cost time.  Static input scales are not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cpu_backend.gguf.layouts import TWICE_E2M1
from cpu_backend.host.bases import RoutedExperts
from cpu_backend.host.quantized_bases import (
    FP8ScaledMMLinearKernel,
    FP8ScaledMMLinearLayerConfig,
    MxFp4LinearKernel,
    MxFp4LinearLayerConfig,
    Mxfp8LinearKernel,
    Mxfp8LinearLayerConfig,
    NvFp4LinearKernel,
    NvFp4LinearLayerConfig,
)
from cpu_backend.layers.experts import ExpertsMethod
from cpu_backend.layers.quantization.packing import (
    PackedKernel,
    naming,
    pack,
    rehearse,
    weight_only_activations,
)
from cpu_backend.ops import Activations, Codes, GroupScales
from cpu_backend.providers import Matrix

FLOAT = Activations("float")
NVFP4_GROUP = 16  # channels that share a scale


class CpuFp8Linear(PackedKernel, FP8ScaledMMLinearKernel):
    """e4m3 weights with a scale per tensor, per column or per block."""

    def __init__(
        self, c: FP8ScaledMMLinearLayerConfig, layer_param_names: Sequence[str] | None = None
    ) -> None:
        # Not the parent's, which prepares to quantize activations.
        del layer_param_names
        self.config = c
        _rehearse_e4m3()

    @classmethod
    def can_implement(cls, c: FP8ScaledMMLinearLayerConfig) -> tuple[bool, str | None]:
        """Any shape of scale."""
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """weight [out, in] with blocks, else [in, out]; the scale as the scheme has it."""
        block = self.config.weight_quant_key.scale.group_shape
        blocks = block.row > 0 and block.col > 0
        weight = layer.weight.data if blocks else layer.weight.data.t()
        out_features, in_features = weight.shape
        names = ["weight_scale_inv", "weight_scale"]
        [name] = [n for n in names if getattr(layer, n, None) is not None]
        scale = getattr(layer, name).data
        if scale.dtype in (torch.uint8, torch.float8_e8m0fnu):
            scale = power_of_two(scale)
        with naming(layer):
            if blocks:
                rows = scale.float().repeat_interleave(block.row, 0)[:out_features]
                scales, group = rows.t(), min(block.col, in_features)
            else:
                scales, group = self._columns(layer, scale.float(), out_features), in_features
        freed = [n for n in ("weight", name, "input_scale") if hasattr(layer, n)]
        pack(
            layer,
            Matrix(Codes(weight, "bytes", 8), GroupScales(scales, group), in_features, FLOAT),
            *freed,
        )

    def _columns(
        self, layer: torch.nn.Module, scale: torch.Tensor, out_features: int
    ) -> torch.Tensor:
        """[1, out] of one scale, one per merged layer, or one per column."""
        widths = layer.logical_widths
        if scale.numel() == len(widths) > 1 and scale.numel() != out_features:
            scale = torch.cat([s.expand(w) for s, w in zip(scale.flatten(), widths, strict=True)])
        return scale.reshape(1, -1).expand(1, out_features)

    def apply_scaled_mm(self, **_: Any) -> torch.Tensor:
        """The parent's hook for quantized activations, of which there are none."""
        raise NotImplementedError("fp8 weights meet unquantized activations here.")


class Fp8ExpertsMethod(ExpertsMethod):
    """e4m3 weights [out, in] with a scale per half and expert, per column or per block."""

    weight_block_size: list[int] | None = None  # the host's

    def matrix(self, layer: RoutedExperts, name: str, expert: int) -> Matrix:
        """w13_ and w2_weight, and _weight_scale_inv (blocks) or _weight_scale."""
        weight = getattr(layer, f"{name}_weight").data[expert]
        out_features, in_features = weight.shape
        names = [f"{name}_weight_scale_inv", f"{name}_weight_scale"]
        [scale] = [getattr(layer, n).data for n in names if getattr(layer, n, None) is not None]
        # A gate and an up projection have their own scales, whatever these belong to.
        halves = self.halves if name == "w13" else 1
        size = out_features // halves
        scale = scale[expert].float()
        if self.weight_block_size is not None:
            rows, columns = self._block(self.weight_block_size, scale, halves, size, in_features)
            scale = scale.unflatten(0, (halves, -1)).repeat_interleave(rows, 1)[:, :size]
            groups = GroupScales(scale.flatten(0, 1).t(), min(columns, in_features))
        else:
            scale = scale.reshape(halves, -1).expand(halves, size)
            groups = GroupScales(scale.reshape(1, -1), in_features)
        return Matrix(Codes(weight, "bytes", 8), groups, in_features, FLOAT)

    def _block(
        self, block: list[int], scale: torch.Tensor, halves: int, size: int, in_features: int
    ) -> tuple[int, int]:
        """The checkpoint's block, or the smaller one into which the host cuts it for a rank."""
        for rows, columns in (block, getattr(self, "moe_block_shape", block)):
            if scale.shape == (halves * -(-size // rows), -(-in_features // columns)):
                return rows, columns
        raise ValueError(
            f"scales {list(scale.shape)} fit no blocks of {block} of a weight "
            f"[{halves * size}, {in_features}]."
        )


class ModelOptFp8ExpertsMethod(Fp8ExpertsMethod):
    """Model Optimizer's, without blocks; the host's loader goes by "ModelOpt" in the name of this
    class, as of those below."""


class CpuMxfp8Linear(PackedKernel, Mxfp8LinearKernel):
    """e4m3 weights with a power of two per 32 channels."""

    def __init__(self, c: Mxfp8LinearLayerConfig) -> None:
        super().__init__(c)
        _rehearse_e4m3()

    @classmethod
    def can_implement(cls, c: Mxfp8LinearLayerConfig) -> tuple[bool, str | None]:
        """Matrices; not the batched products of MLA."""
        return c.bmm_batch_size is None, "batched products are not supported"

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """weight e4m3 [out, in], weight_scale uint8 [out, in / 32]."""
        matrix = matrix_of_mxfp8(layer.weight.data, layer.weight_scale.data)
        pack(layer, matrix, "weight", "weight_scale")


class Mxfp8ExpertsMethod(ExpertsMethod):
    """The same tensors with the experts in front."""

    def matrix(self, layer: RoutedExperts, name: str, expert: int) -> Matrix:
        """w13_ and w2_weight, and _weight_scale."""
        weight = getattr(layer, f"{name}_weight").data[expert]
        scales = getattr(layer, f"{name}_weight_scale").data[expert]
        return matrix_of_mxfp8(weight, scales)


class ModelOptMxfp8ExpertsMethod(Mxfp8ExpertsMethod):
    """Model Optimizer's."""


def matrix_of_mxfp8(weight: torch.Tensor, scales: torch.Tensor) -> Matrix:
    """weight e4m3 [out, in], scales e8m0 [out, in / 32]."""
    in_features = weight.shape[1]
    groups = GroupScales(power_of_two(scales).t(), min(32, in_features))
    return Matrix(Codes(weight, "bytes", 8), groups, in_features, FLOAT)


class CpuMxfp4Linear(PackedKernel, MxFp4LinearKernel):
    """e2m1 weights with a power of two per 32 channels."""

    def __init__(self, config: MxFp4LinearLayerConfig) -> None:
        super().__init__(config)
        _rehearse_e2m1()

    @classmethod
    def can_implement(cls, config: MxFp4LinearLayerConfig) -> tuple[bool, str | None]:
        """Any: activations are not rounded to what the checkpoint was made for."""
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """weight uint8 [out, in / 2], the first of two codes low; weight_scale uint8."""
        matrix = matrix_of_mxfp4(layer.weight.data, layer.weight_scale.data)
        pack(layer, matrix, "weight", "weight_scale")


class Mxfp4ExpertsMethod(ExpertsMethod):
    """The same tensors with the experts in front."""

    def matrix(self, layer: RoutedExperts, name: str, expert: int) -> Matrix:
        """w13_ and w2_weight or _weight_packed, and _weight_scale."""
        packed = getattr(layer, f"{name}_weight_packed", None)
        pairs = (getattr(layer, f"{name}_weight") if packed is None else packed).data[expert]
        scales = getattr(layer, f"{name}_weight_scale").data[expert]
        return matrix_of_mxfp4(pairs, scales)


class CpuNvFp4Linear(PackedKernel, NvFp4LinearKernel):
    """e2m1 weights with an e4m3 scale per 16 channels and one in fp32 for all."""

    def __init__(self, config: NvFp4LinearLayerConfig) -> None:
        super().__init__(config)
        _rehearse_e2m1()

    @classmethod
    def can_implement(cls, config: NvFp4LinearLayerConfig) -> tuple[bool, str | None]:
        """Any: activations are not rounded to what the checkpoint was made for."""
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """weight uint8 [out, in / 2], the first of two codes low; weight_scale e4m3 [out, in / 16];
        weight_global_scale fp32, one number."""
        scales = layer.weight_scale.data.float() * layer.weight_global_scale.data.float()
        matrix = matrix_of_e2m1(layer.weight.data, scales, NVFP4_GROUP)
        pack(layer, matrix, "weight", "weight_scale")


class NvFp4ExpertsMethod(ExpertsMethod):
    """compressed-tensors' tensors with the experts in front."""

    def check(self, layer: RoutedExperts, intermediate_size: int) -> None:
        """The host has no parameters for biases, and would round slices down to whole groups."""
        with naming(layer):
            if self.moe.has_bias:
                raise ValueError(
                    "experts with biases are not supported in NVFP4: choose another checkpoint."
                )
            if intermediate_size % NVFP4_GROUP:
                raise ValueError(
                    f"this rank would have {intermediate_size} channels of each expert, and in "
                    f"NVFP4 {NVFP4_GROUP} share a scale: use fewer ranks (-tp) or "
                    "--enable-expert-parallel."
                )

    def matrix(self, layer: RoutedExperts, name: str, expert: int) -> Matrix:
        """w13_ and w2_weight_scale e4m3 [out, in / 16], and what ``stored`` reads."""
        pairs, factors = self.stored(layer, name)
        scales = getattr(layer, f"{name}_weight_scale").data[expert].float()
        # A gate and an up projection have their own.
        factor = factors[expert].reshape(-1, 1, 1)
        scales = (scales.unflatten(0, (len(factor), -1)) * factor).flatten(0, 1)
        return matrix_of_e2m1(pairs[expert], scales, NVFP4_GROUP)

    def stored(self, layer: RoutedExperts, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Pairs of codes uint8 [experts, out, in / 2], the first one low, and what all scales of a
        matrix are multiplied by, fp32 [experts] or, for gates and ups, [experts, 2]."""
        divisors = getattr(layer, f"{name}_weight_global_scale").data
        return getattr(layer, f"{name}_weight_packed").data, 1 / divisors


class ModelOptNvFp4ExpertsMethod(NvFp4ExpertsMethod):
    """Model Optimizer's, which are called otherwise."""

    def stored(self, layer: RoutedExperts, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The global scales are factors already."""
        factors = getattr(layer, f"{name}_weight_scale_2").data
        return getattr(layer, f"{name}_weight").data, factors


def matrix_of_mxfp4(pairs: torch.Tensor, scales: torch.Tensor) -> Matrix:
    """pairs uint8 [out, in / 2], the first of two codes low; scales e8m0 [out, in / 32]."""
    return matrix_of_e2m1(pairs, power_of_two(scales).to(torch.bfloat16), 32)


def matrix_of_e2m1(pairs: torch.Tensor, scales: torch.Tensor, group: int) -> Matrix:
    """pairs uint8 [out, in / 2], the first of two codes low; scales [out, in / group]."""
    in_features = 2 * pairs.shape[1]
    return Matrix(
        Codes(pairs, "pairs_of_k", 4, table=TWICE_E2M1),
        GroupScales((scales / 2).t(), min(group, in_features)),  # of codes that are twice a number
        in_features,
        weight_only_activations(),
    )


def _rehearse_e4m3() -> None:
    """The host does not always say a layer's shape, and no provider asks for it."""
    rehearse((64, 64), 8, 32, FLOAT.kind, torch.bfloat16, stored=torch.float8_e4m3fn)


def _rehearse_e2m1() -> None:
    activations = weight_only_activations().kind
    rehearse((64, 64), 4, 32, activations, torch.bfloat16, table=TWICE_E2M1)


def power_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """fp32 of e8m0 numbers: 2^(byte - 127)."""
    return torch.exp2(exponents.view(torch.uint8).float() - 127)
