"""What the schemes share: from a layer's checkpoint tensors to its packed weight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cpu_backend import envs, providers
from cpu_backend.errors import ConfigError
from cpu_backend.host.bases import LinearBase, QuantizationConfig, VocabParallelEmbedding
from cpu_backend.layers.linear import parts_of
from cpu_backend.ops import Activations, Codes, GroupScales, QuantizedLinear, kept_bits
from cpu_backend.providers import Matrix, Provider

# Of the host's classes that do not say what they merge.
_MERGED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


def shards_of(last: str, mapping: dict[str, list[str]], is_one: bool) -> list[str]:
    """The last names of the modules that a layer of the host merges, by the host's ``mapping``;
    is_one: the checkpoint has the layer itself."""
    shards = mapping.get(last, [last])
    return shards if is_one or shards != [last] else _MERGED.get(last, shards)


class OwnConfig(QuantizationConfig):
    """A method of this backend's own: no file of settings, no GPU, every activation dtype.

    of_checkpoints: whether it reads what a tool has quantized.
    """

    name: str
    of_checkpoints = False

    @classmethod
    def get_name(cls) -> Any:
        """What ``--quantization`` and config.json call it."""
        return cls.name

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        """All of this backend's."""
        return [torch.float32, torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        """None: this is no GPU."""
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        """None."""
        return []


class PackedKernel:
    """What this backend's entries in the host's registries of linear kernels share."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        """On every CPU."""
        return True, None

    def apply_weights(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [..., in] to [..., out] in x's dtype."""
        return run(layer, x, bias)


def weight_only_activations() -> Activations:
    """The integers that activations become where a scheme leaves them alone."""
    return Activations(envs.activations())


@contextmanager
def naming(layer: torch.nn.Module) -> Iterator[None]:
    """Errors of the packing ops get the layer's name and end the start with one sentence."""
    try:
        yield
    except (ValueError, TypeError) as error:
        name = getattr(layer, "prefix", "") or getattr(layer, "layer_name", type(layer).__name__)
        raise ConfigError(f"{name} cannot be loaded: {str(error).splitlines()[0]}") from error


def run(layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., in] to [..., out] in x's dtype, after pack()."""
    result: torch.Tensor = layer.cpu_linear(x, None, bias)
    return result


def pack(layer: torch.nn.Module, matrix: Matrix, *freed: str) -> None:
    """Give ``layer`` a packed weight, ``cpu_linear`` as pack_unquantized() does; its parameters
    named ``freed`` are dropped.  An empty ``weight`` stays, for whose dtype some models ask, and
    adapters for whose device.

    Logits stay in fp32: rounding them to 16 bits makes ties between likely tokens.
    """
    with naming(layer):
        if isinstance(layer, VocabParallelEmbedding):
            layer.cpu_linear = QuantizedLinear(*matrix, float_output=True)
        else:
            matrix = matrix._replace(parts=parts_of(layer))
            layer.cpu_linear = providers.linear.make(
                f"int{matrix.codes.bits}",
                lambda provider: provider.quantized(matrix, layer.params_dtype),
            )
    for name in freed:
        setattr(layer, name, None)
    if "weight" in freed or isinstance(layer, LinearBase):
        empty = torch.empty(0, dtype=getattr(layer, "params_dtype", None))
        layer.weight = torch.nn.Parameter(empty, requires_grad=False)


def rehearse(
    shape: tuple[int, int],
    bits: int,
    group: int,
    activations: str,
    dtype: torch.dtype,
    *,
    zeros: bool = False,
    stored: torch.dtype = torch.uint8,
    table: torch.Tensor | None = None,
) -> None:
    """Have the provider that was named pack such a layer before its weights are read, so that what
    it lacks is told at once.

    shape: [out, in]; group: channels that share a scale, -1 for all; activations: as in
    Activations; dtype: theirs; zeros: whether groups have zero points; stored: of the codes;
    table: as in Codes.
    Raises ConfigError.
    """
    out_features, in_features = shape
    size = in_features if group == -1 else min(group, in_features)

    def trial(provider: Provider) -> object:
        numbers = torch.zeros(shape, dtype=torch.uint8).view(stored)
        codes = Codes(numbers, "bytes", bits, 128 if stored == torch.int8 else 0, table)
        scales = torch.ones(-(-in_features // size), out_features)
        groups = GroupScales(scales, size, scales if zeros else None)
        return provider.quantized(
            Matrix(codes, groups, in_features, Activations(activations)), dtype
        )

    what = (shape, bits, size, activations, dtype, zeros, stored, table)
    providers.linear.rehearse(what, trial)


def unpack_rows(words: torch.Tensor, bits: int, size: int) -> torch.Tensor:
    """int32 [rows, words], each row a stream of unsigned codes, lowest bits first, to [rows, size].

    For zero points, which are small; weights are unpacked by the packing op itself.
    """
    position = torch.arange(size) * bits
    first, shift = position // 32, position % 32
    unsigned = words.long() & 0xFFFFFFFF
    unsigned = torch.nn.functional.pad(unsigned, (0, 1))
    pair = unsigned[:, first] | (unsigned[:, first + 1] << 32)
    return (pair >> shift) & (2**bits - 1)


def recentred(bits: int) -> int:
    """What moves the middle of unsigned ``bits`` to the middle of the kept width."""
    return int(2 ** (kept_bits(bits) - 1) - 2 ** (bits - 1))
