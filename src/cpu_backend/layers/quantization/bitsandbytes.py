"""bitsandbytes checkpoints: NF4 and FP4 (QLoRA, arXiv 2305.14314) and LLM.int8() (2208.07339).

weight                  4 bits: uint8 [out * in / 2, 1], the first of two codes high; runs of 64
                        codes, in rows one after the other, share a scale.  8 bits: int8 [out, in]
weight.absmax           fp32 [runs]; or, with double quantization, uint8, read by the table
weight.nested_quant_map fp32 [256], times nested_absmax for 256 each, plus nested_offset
weight.quant_state...   what belongs to them, JSON in bytes
SCB                     8 bits: 127 times the scales, fp32 [out]

As they are read they become what layers have: ``weight`` uint8 [out, in / 2], the first code low,
and ``weight_scale``.  The sixteen numbers of NF4 are no whole ones: kept as 8-bit codes of the
scale that fits them best, they move a matrix by 0.5 % (relative Frobenius norm, as FP4's do),
beside the 9.5 % that NF4 has cost it already.  Activations stay as they are, where LLM.int8()
rounds them to 8 bits but for outliers.
"""

from __future__ import annotations

import functools
import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from cpu_backend.errors import ConfigError
from cpu_backend.gguf.layouts import fits_half, table_of
from cpu_backend.host.bases import (
    ChannelQuantScaleParameter,
    DefaultModelLoader,
    FusedMoEConfig,
    FusedMoEMethodBase,
    FusedMoeWeightScaleSupported,
    GroupQuantScaleParameter,
    LinearBase,
    LinearMethodBase,
    LoadConfig,
    ModelWeightParameter,
    QuantizeMethodBase,
    RoutedExperts,
    UnquantizedLinearMethod,
    get_tensor_model_parallel_world_size,
    register_model_loader,
    register_quantization_config,
    register_weight_loader_v2_supported_method,
    set_weight_attrs,
)
from cpu_backend.layers.experts import ExpertsMethod
from cpu_backend.layers.quantization.listed import Listed
from cpu_backend.layers.quantization.packing import (
    OwnConfig,
    pack,
    rehearse,
    run,
    weight_only_activations,
)
from cpu_backend.ops import Codes, GroupScales
from cpu_backend.providers import Matrix

METHOD = "bitsandbytes"
RUN = 64  # codes that share a scale

# What 4-bit codes stand for, and what the scales are divided by: the numbers are then nearly whole.
_NF4 = (
    *(-1.0, -0.69619280, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0),
    *(0.07958030, 0.16093020, 0.24611230, 0.33791524, 0.44070983, 0.56261700, 0.72295684, 1.0),
)
_FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
NUMBERS = {"nf4": (_NF4, 112.1), "fp4": (_FP4 + tuple(-number for number in _FP4), 120.0)}
TABLES = {
    kind: table_of([round(number * whole) for number in numbers])
    for kind, (numbers, whole) in NUMBERS.items()
}


class CpuBitsAndBytesConfig(Listed, OwnConfig):
    """kind: nf4, fp4 or int8."""

    name = METHOD
    of_checkpoints = True

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.ending = ".SCB" if kind == "int8" else ".weight.absmax"

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CpuBitsAndBytesConfig:
        """From ``quantization_config`` of config.json."""
        kind = config.get("bnb_4bit_quant_type", "fp4") if config.get("load_in_4bit") else "int8"
        if kind not in (*TABLES, "int8"):
            raise ConfigError(f"bnb_4bit_quant_type '{kind}' is not supported: nf4 and fp4 are.")
        return cls(kind)

    def maybe_update_config(
        self, model_name: str, hf_config: Any = None, revision: str | None = None
    ) -> None:
        """Raises ConfigError where nothing is quantized so."""
        super().maybe_update_config(model_name, hf_config, revision)
        if not self.modules:
            raise ConfigError(
                f"'{model_name}' says that bitsandbytes quantized it ({self.kind}), and has no "
                "such tensors in *.safetensors files: choose another checkpoint."
            )

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """Linear layers and experts that the checkpoint has quantized."""
        if isinstance(layer, RoutedExperts):
            if self.keeps_experts(prefix):
                return BitsAndBytesExpertsMethod(layer.moe_config, self)
        elif isinstance(layer, LinearBase):
            return BitsAndBytesMethod(self) if self.keeps(prefix) else UnquantizedLinearMethod()
        return None


@register_weight_loader_v2_supported_method
class BitsAndBytesMethod(LinearMethodBase):
    """A linear layer."""

    def __init__(self, config: CpuBitsAndBytesConfig) -> None:
        self.listed, self._kind = config, config.kind

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """``weight`` and ``weight_scale`` as in the module's head."""
        del output_size
        rows, columns = sum(output_partition_sizes), input_size_per_partition
        ranks = get_tensor_model_parallel_world_size()
        width, dtype, runs = widths(self._kind, columns, input_size, ranks)
        rehearse(
            (rows, columns),
            4 if self._kind in TABLES else 8,
            columns // runs,
            weight_only_activations().kind,
            params_dtype,
            table=TABLES.get(self._kind),
        )
        data, loader = torch.empty(rows, width, dtype=dtype), extra_weight_attrs["weight_loader"]
        weight = ModelWeightParameter(data=data, input_dim=1, output_dim=0, weight_loader=loader)
        layer.register_parameter("weight", weight)
        along = {"input_dim": 1} if self._kind in TABLES else {}
        scales = (GroupQuantScaleParameter if along else ChannelQuantScaleParameter)(
            data=torch.empty(rows, runs, dtype=torch.float32),
            output_dim=0,
            weight_loader=loader,
            **along,
        )
        layer.register_parameter("weight_scale", scales)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Pack and free what was loaded."""
        matrix = matrix_of(self._kind, layer.weight.data, layer.weight_scale.data)
        pack(layer, matrix, "weight", "weight_scale")

    apply = staticmethod(run)


class BitsAndBytesExperts(FusedMoEMethodBase):
    """The parameters of a mixture of experts."""

    def __init__(self, moe: FusedMoEConfig, config: CpuBitsAndBytesConfig) -> None:
        super().__init__(moe)
        self.listed, self._kind = config, config.kind

    def create_weights(
        self,
        layer: RoutedExperts,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """w13_ and w2_: weight [experts, out, in / 2] and weight_scale [experts, out, runs]."""
        del params_dtype
        halves = 2 if self.moe.activation.is_gated else 1
        inner = intermediate_size_per_partition
        shapes = {
            "w13": (halves * inner, hidden_size, hidden_size),
            "w2": (hidden_size, inner, inner * self.moe.tp_size),
        }
        ranks = get_tensor_model_parallel_world_size()
        how = FusedMoeWeightScaleSupported["GROUP" if self._kind in TABLES else "CHANNEL"]
        for name, (rows, own, columns) in shapes.items():
            width, dtype, runs = widths(self._kind, own, columns, ranks)
            for part, data in (
                ("weight", torch.empty(num_experts, rows, width, dtype=dtype)),
                ("weight_scale", torch.empty(num_experts, rows, runs, dtype=torch.float32)),
            ):
                parameter = torch.nn.Parameter(data, requires_grad=False)
                layer.register_parameter(f"{name}_{part}", parameter)
                set_weight_attrs(parameter, extra_weight_attrs | {"quant_method": how.value})


class BitsAndBytesExpertsMethod(ExpertsMethod, BitsAndBytesExperts):
    """A mixture of experts, each of whose matrices is stored like a linear layer's."""

    in_turns = False

    def matrix(self, layer: RoutedExperts, name: str, expert: int) -> Matrix:
        """As a linear layer's."""
        weight = getattr(layer, f"{name}_weight").data[expert]
        return matrix_of(self._kind, weight, getattr(layer, f"{name}_weight_scale").data[expert])


def matrix_of(kind: str, weight: torch.Tensor, scales: torch.Tensor) -> Matrix:
    """weight and scales of a module, as loaded."""
    if kind == "int8":
        in_features, codes = weight.shape[1], Codes(weight, "bytes", 8, add=128)
    else:
        in_features = 2 * weight.shape[1]
        codes = Codes(weight, "pairs_of_k", 4, table=TABLES[kind])
        scales = scales / NUMBERS[kind][1]
    scales = scales.half() if fits_half(scales) else scales
    groups = GroupScales(scales.t(), in_features // scales.shape[1])
    return Matrix(codes, groups, in_features, weight_only_activations())


def run_of(columns: int, ranks: int) -> int:
    """So many neighbours of a row have one scale: where a run ends within a row, or within what a
    rank may have of it, a part of one."""
    return math.gcd(columns if columns % ranks else columns // ranks, RUN)


def widths(kind: str, own: int, columns: int, ranks: int) -> tuple[int, torch.dtype, int]:
    """Of a row of ``weight``, with its dtype, and of ``weight_scale``; own: of this rank."""
    if kind == "int8":
        return own, torch.int8, 1
    return own // 2, torch.uint8, own // run_of(columns, ranks)


# ---- the checkpoint's tensors ----------------------------------------------------------------

Weights = Iterator[tuple[str, torch.Tensor]]


def converted(weights: Weights, ranks: int, kept: Collection[str]) -> Weights:
    """The tensors of a checkpoint as layers have them, numbers where they are not among ``kept``;
    their order is that of the files."""
    modules: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for name, tensor in weights:
        module, part = part_of(name, tensor)
        if not part:
            yield name, tensor
            continue
        found = modules[module]
        found[part] = tensor
        if is_whole(found):
            kind, weight, scales = (eight_bits if "SCB" in found else four_bits)(
                module, modules.pop(module), ranks
            )
            if module in kept:
                yield f"{module}.weight", weight
                yield f"{module}.weight_scale", scales
            else:
                yield f"{module}.weight", numbers(kind, weight, scales)
    for module, found in modules.items():
        if found.keys() != {"weight"}:
            raise ConfigError(
                f"{module} has only {', '.join(sorted(found))} of what bitsandbytes stores: fetch "
                "the checkpoint again."
            )
        yield f"{module}.weight", found["weight"]  # of one channel, or of whole numbers


def part_of(name: str, tensor: torch.Tensor) -> tuple[str, str]:
    """The module that a tensor of the checkpoint is a part of, and which; "" for other tensors."""
    module, _, part = name.rpartition(".weight.")
    if module:
        return module, part.partition(".")[0]
    module, _, part = name.rpartition(".")
    one = tensor.dim() == 2 and tensor.shape[1] == 1
    if part in ("SCB", "weight_format") or (
        part == "weight" and (one or tensor.dtype == torch.int8)
    ):
        return module, part
    return name, ""


def state_of(found: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What its JSON says of a module."""
    state: dict[str, Any] = json.loads(bytes(found["quant_state"].tolist()))
    return state


def is_whole(found: dict[str, torch.Tensor]) -> bool:
    """Whether all of a module's tensors were read."""
    if {"weight", "SCB", "weight_format"} <= found.keys():
        return True
    needed = {"weight", "absmax", "quant_map", "quant_state"}
    if needed <= found.keys() and "nested_offset" in state_of(found):
        needed |= {"nested_absmax", "nested_quant_map"}
    return needed <= found.keys()


def eight_bits(
    module: str, found: dict[str, torch.Tensor], ranks: int
) -> tuple[str, torch.Tensor, torch.Tensor]:
    """kind, weight and weight_scale of what ``is_whole``."""
    del ranks
    if found["weight_format"].item() != 0:
        raise ConfigError(
            f"{module}.weight_format is {found['weight_format'].item()}: the rows of bitsandbytes' "
            "8-bit weights must be stored one after the other (0)."
        )
    return "int8", found["weight"], found["SCB"].float().unsqueeze(1) / 127


def four_bits(
    module: str, found: dict[str, torch.Tensor], ranks: int
) -> tuple[str, torch.Tensor, torch.Tensor]:
    """The same."""
    state = state_of(found)
    rows, columns = state["shape"]
    run = run_of(columns, ranks)
    known = state["quant_type"] in NUMBERS and np.allclose(
        found["quant_map"].tolist(), NUMBERS[state["quant_type"]][0], atol=1e-6
    )
    if not known or state["blocksize"] != RUN or run % 2:
        raise ConfigError(
            f"{module} of shape {state['shape']} is stored by bitsandbytes in "
            f"{state['quant_type']} with a scale for {state['blocksize']} numbers, which is not "
            f"supported: nf4 and fp4 with {RUN} are."
        )
    absmax = found["absmax"]
    if "nested_offset" in state:
        nested = found["nested_quant_map"].float()[absmax.int()]
        each = found["nested_absmax"].float().repeat_interleave(state["nested_blocksize"])
        absmax = nested * each[: len(nested)] + state["nested_offset"]
    pairs = found["weight"].contiguous().view(torch.uint8).view(rows, columns // 2)
    scales = absmax.float().repeat_interleave(RUN // run)[: rows * columns // run]
    return state["quant_type"], pairs << 4 | pairs >> 4, scales.view(rows, -1)


def numbers(kind: str, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """weight and weight_scale as fp32 [out, in]."""
    if kind == "int8":
        return weight * scales
    codes = torch.stack((weight & 15, weight >> 4), -1).flatten(1)
    values = torch.tensor(NUMBERS[kind][0], dtype=torch.float32)[codes.int()]
    return (values.unflatten(1, (scales.shape[1], -1)) * scales.unsqueeze(-1)).flatten(1)


class BitsAndBytesLoader(DefaultModelLoader):
    """``--load-format bitsandbytes``, which older hosts needed: the usual one."""

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(replace(load_config, load_format="auto"))


@functools.cache
def register() -> None:
    """Make both known to the host, which has dropped them."""
    register_quantization_config(METHOD)(CpuBitsAndBytesConfig)
    register_model_loader(METHOD)(BitsAndBytesLoader)
