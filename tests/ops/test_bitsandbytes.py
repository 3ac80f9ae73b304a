"""bitsandbytes' tensors as layers have them: the numbers are those that the package means."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes import functional
from safetensors.torch import save_file

from cpu_backend.errors import ConfigError
from cpu_backend.layers.quantization.bitsandbytes import (
    NUMBERS,
    TABLES,
    CpuBitsAndBytesConfig,
    converted,
    matrix_of,
    widths,
)
from cpu_backend.ops import QuantizedLinear

KINDS = {"nf4": 0.0055, "fp4": 0.0055}  # what whole numbers cost, relative Frobenius norm


def stored(kind: str, weight: torch.Tensor, double: bool = True) -> dict[str, torch.Tensor]:
    codes, state = functional.quantize_4bit(weight, quant_type=kind, compress_statistics=double)
    parts = state.as_dict(packed=True)
    return {"m.weight": codes} | {f"m.weight.{name}": part for name, part in parts.items()}


def numbers_of(codes: torch.Tensor, state: functional.QuantState) -> torch.Tensor:
    """By their definition: ``dequantize_4bit`` of 0.50.2 is wrong on CPUs with AVX-512 where runs
    end within a row."""
    scales = state.absmax
    if state.nested:
        scales = functional.dequantize_blockwise(scales, state.state2) + state.offset
    codes = codes.view(torch.uint8).flatten()
    pairs = torch.stack((codes >> 4, codes & 15), -1).flatten()
    return state.code[pairs.int()] * scales.repeat_interleave(64)[: len(pairs)]


def pairs(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """In no order: files have them by dtype and name."""
    found = list(tensors.items())
    random.Random(20).shuffle(found)
    return iter(found)


def dequantized(kind: str, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    codes = torch.stack((weight & 15, weight >> 4), -1).flatten(1)
    numbers = (TABLES[kind].float() - 128)[codes.int()] / NUMBERS[kind][1]
    return numbers * scales.repeat_interleave(codes.shape[1] // scales.shape[1], 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("shape", [(24, 128), (24, 192), (16, 96), (8, 40), (4, 4)])
@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16])
def test_four_bits_are_the_numbers_that_the_package_stored(
    kind: str, double: bool, shape: tuple[int, int], storage: torch.dtype, seeded: torch.Generator
) -> None:
    """Also where a run of 64 begins in a row and ends in the next, and in any order of tensors."""
    original = torch.randn(shape, generator=seeded)
    codes, state = functional.quantize_4bit(
        original, quant_type=kind, compress_statistics=double, quant_storage=storage
    )
    expected = numbers_of(codes, state).view(shape)
    parts = state.as_dict(packed=True)
    tensors = {"m.weight": codes} | {f"m.weight.{name}": part for name, part in parts.items()}
    found = dict(converted(pairs(tensors | {"n.weight": original}), 1, {"m"}))
    assert found.keys() == {"m.weight", "m.weight_scale", "n.weight"}
    assert found["n.weight"] is original
    values = dequantized(kind, found["m.weight"], found["m.weight_scale"])
    assert torch.linalg.vector_norm(values - expected) < KINDS[kind] * expected.norm()
    [(name, plain)] = converted(pairs(tensors), 1, set())
    assert name == "m.weight"
    torch.testing.assert_close(plain, expected)
    x = torch.randn(5, shape[1], generator=seeded)
    packed = QuantizedLinear(*matrix_of(kind, found["m.weight"], found["m.weight_scale"]))
    assert torch.linalg.vector_norm(packed(x) - x @ values.t()) < 1e-3 * (x @ values.t()).norm()
    if shape[1] == 128:
        assert packed.nbytes * 8 / original.numel() < 4.3 * 32 / 24  # columns fill up a panel


def test_eight_bits_are_what_the_package_stored(seeded: torch.Generator) -> None:
    original = torch.randn(24, 96, generator=seeded)
    codes, scb, _ = functional.int8_vectorwise_quant(original.half())
    tensors = {"m.weight": codes, "m.SCB": scb, "m.weight_format": torch.tensor(0).byte()}
    found = dict(converted(pairs(tensors), 1, {"m"}))
    assert found.keys() == {"m.weight", "m.weight_scale"}
    values = found["m.weight"] * found["m.weight_scale"]
    torch.testing.assert_close(values, functional.int8_vectorwise_dequant(codes, scb))
    [(_, plain)] = converted(pairs(tensors), 1, set())
    assert torch.equal(plain, values)
    packed = QuantizedLinear(*matrix_of("int8", codes, found["m.weight_scale"]))
    x = torch.randn(5, 96, generator=seeded)
    assert torch.linalg.vector_norm(packed(x) - x @ values.t()) < 1e-3 * (x @ values.t()).norm()


def edited(**changes: Any) -> dict[str, torch.Tensor]:
    """A module whose JSON says something else."""
    tensors = stored("nf4", torch.ones(8, 64))
    name = "m.weight.quant_state.bitsandbytes__nf4"
    state = json.loads(bytes(tensors[name].tolist())) | changes
    return tensors | {name: torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)}


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        (edited(quant_type="nf3"), "in nf3 with a scale for 64 numbers, which is not supported"),
        (edited(quant_type="fp4"), "in fp4 with a scale for 64 numbers, which is not supported"),
        (edited(blocksize=128), "with a scale for 128 numbers, which is not supported: nf4"),
        (edited(shape=[8, 63]), r"m of shape \[8, 63\] is stored"),
        (
            {
                "m.weight_format": torch.tensor(2),
                "m.SCB": torch.ones(4),
                "m.weight": torch.ones(4, 4).char(),
            },
            "m.weight_format is 2: the rows of",
        ),
        (
            {n: t for n, t in edited().items() if not n.endswith("nested_absmax")},
            "m has only absmax, nested_quant_map, quant_map, quant_state, weight of what",
        ),
    ],
)
def test_what_is_not_known_is_named(tensors: dict[str, torch.Tensor], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        dict(converted(pairs(tensors), 1, {"m"}))


def test_weights_of_one_channel_are_no_codes() -> None:
    tensor = torch.ones(8, 1)
    assert dict(converted(iter([("m.weight", tensor)]), 1, set()))["m.weight"] is tensor


def test_ranks_have_whole_runs_or_parts_of_them() -> None:
    assert widths("nf4", 128, 128, 1) == (64, torch.uint8, 2)
    assert widths("nf4", 96, 192, 2) == (48, torch.uint8, 3)
    assert widths("nf4", 192, 192, 2) == (96, torch.uint8, 6)  # as the rank beside it
    assert widths("nf4", 63 * 64, 63 * 64, 4) == (63 * 32, torch.uint8, 4 * 63)
    assert widths("int8", 96, 192, 2) == (96, torch.int8, 1)
    tensors = stored("nf4", torch.ones(8, 192))
    assert dict(converted(iter(tensors.items()), 2, {"m"}))["m.weight_scale"].shape == (8, 6)


def test_the_config_is_read_and_its_modules_are_those_of_the_files(tmp_path: Path) -> None:
    four = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    assert CpuBitsAndBytesConfig.from_config(four).kind == "nf4"
    assert CpuBitsAndBytesConfig.from_config({"load_in_8bit": True}).kind == "int8"
    with pytest.raises(ConfigError, match="bnb_4bit_quant_type 'nf2' is not supported"):
        CpuBitsAndBytesConfig.from_config(four | {"bnb_4bit_quant_type": "nf2"})
    save_file({"a.weight": torch.ones(4, 4)}, tmp_path / "model.safetensors")
    config = CpuBitsAndBytesConfig("nf4")
    with pytest.raises(ConfigError, match=r"bitsandbytes quantized it \(nf4\), and has no such"):
        config.maybe_update_config(str(tmp_path))
    save_file(stored("nf4", torch.ones(8, 64)), tmp_path / "model.safetensors")
    config.maybe_update_config(str(tmp_path))
    assert config.modules == {"m": "m"}
