"""torchao checkpoints: weights that are tensors of a class of their own, which the host loads.

Int8Tensor, IntxUnpackedToInt8Tensor   qdata int8 [out, in], scale and zero_point [out, groups]
Float8Tensor                           qdata e4m3 [out, in], scale [out, groups] or of all

Others are refused by name: most have layouts for GPUs.  Activations stay as they are, also where
the checkpoint was made for 8-bit ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from cpu_backend.host.bases import QuantizeMethodBase, UnquantizedLinearMethod
from cpu_backend.host.quantized_bases import TorchAOConfig, TorchAOLinearMethod
from cpu_backend.layers.quantization.listed import Listed
from cpu_backend.layers.quantization.packing import (
    naming,
    pack,
    run,
    weight_only_activations,
)
from cpu_backend.ops import Activations, Codes, GroupScales, kept_bits
from cpu_backend.providers import Matrix


class CpuTorchAOConfig(Listed, TorchAOConfig):
    """The host's reader, with this backend's linear method."""

    ending = "._weight_qdata"

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """What the host chooses, but for modules that the checkpoint has left as they were."""
        method = super().get_quant_method(layer, prefix)
        if not isinstance(method, TorchAOLinearMethod):
            return method
        if self.known and not self.keeps(prefix):
            return UnquantizedLinearMethod()
        return CpuTorchAOLinearMethod(method.quant_config, self)


class CpuTorchAOLinearMethod(TorchAOLinearMethod):
    """Loaded as the host does, then packed."""

    def __init__(self, quant_config: TorchAOConfig, listed: CpuTorchAOConfig) -> None:
        super().__init__(quant_config)
        self.listed = listed

    def create_weights(self, layer: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        """The host's; torchao asserts that groups are whole."""
        try:
            super().create_weights(layer, *args, **kwargs)
        except AssertionError as error:
            with naming(layer):
                raise ValueError(f"{error}; use fewer ranks (-tp).") from error

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Also of a weight that the host would quantize now (a file of settings for torchao)."""
        if not self.quant_config.is_checkpoint_torchao_serialized:
            super().process_weights_after_loading(layer)
        with naming(layer):
            matrix = matrix_of(layer.weight)
        pack(layer, matrix, "weight")

    apply = staticmethod(run)


def matrix_of(weight: Any) -> Matrix:
    """Raises ValueError for classes that are not known."""
    kind = type(weight.data).__name__
    if getattr(weight, "act_pre_scale", None) is not None:
        raise ValueError(f"torchao's {kind} with a scale of activations is not supported.")
    rows, columns = weight.shape
    if kind == "Float8Tensor":
        scales = spread(weight.scale, weight.block_size, rows)
        groups = GroupScales(scales.float().t(), weight.block_size[1])
        return Matrix(Codes(weight.qdata, "bytes", 8), groups, columns, Activations("float"))
    if kind in ("Int8Tensor", "IntxUnpackedToInt8Tensor"):
        bits = 8 if kind == "Int8Tensor" else int(str(weight.target_dtype).rpartition("int")[2])
        kept = kept_bits(bits)
        middle = 2 ** (kept - 1)
        scales = spread(weight.scale, weight.block_size, rows)
        zeros = weight.zero_point
        if zeros is not None and zeros.any():
            zeros = (spread(zeros, weight.block_size, rows).to(scales.dtype) + middle).t()
        else:
            zeros = None
        groups = GroupScales(scales.t(), weight.block_size[1], zeros)
        codes = Codes(weight.qdata, "bytes", kept, add=middle)
        return Matrix(codes, groups, columns, weight_only_activations())
    raise ValueError(
        f"torchao's {kind} is not supported: choose a checkpoint of Int8Tensor, "
        "IntxUnpackedToInt8Tensor or Float8Tensor."
    )


def spread(table: torch.Tensor, block: list[int], rows: int) -> torch.Tensor:
    """A table of blocks of several rows as [rows, groups]."""
    table = table.reshape(-1, table.shape[-1]) if table.dim() > 1 else table.reshape(-1, 1)
    return table if len(table) == rows else table.repeat_interleave(block[0], 0)


def converted(
    weights: Iterator[tuple[str, torch.Tensor]], kept: Collection[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a checkpoint, numbers where their modules are not among ``kept``."""
    for name, tensor in weights:
        plain = not is_traceable_wrapper_subclass(tensor) or name.removesuffix(".weight") in kept
        yield name, tensor if plain else tensor.dequantize()
