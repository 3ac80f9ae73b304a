"""The numbers that examples/quantize_model.py writes, as other tools name and describe them, and
those that bitsandbytes makes.

A scheme is that script's: ``write`` makes a layer's tensors, ``config`` goes to config.json.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch

from examples import quantize_model


def nvfp4_of_each(scheme: Any) -> Any:
    """Every matrix has global scales of its own, also where a backend merges it with others."""

    def write(layer: Any) -> dict[str, torch.Tensor]:
        factor = random.Random(layer.name).uniform(0.25, 4)
        tensors = scheme.write(replace(layer, weight=layer.weight * factor))
        tensors["weight_global_scale"] *= factor
        if "input_global_scale" in tensors:
            tensors["input_global_scale"] /= factor
        return tensors

    return replace(scheme, write=write)


def modelopt(scheme: Any, algorithm: str) -> Any:
    """As NVIDIA's Model Optimizer names and describes them; global scales are factors there."""

    def write(layer: Any) -> dict[str, torch.Tensor]:
        tensors = {
            name: t.view(()) if t.numel() == 1 else t for name, t in scheme.write(layer).items()
        }
        for name, other in (("weight", "weight_scale_2"), ("input", "input_scale")):
            if (divisor := tensors.pop(f"{name}_global_scale", None)) is not None:
                tensors[other] = 1 / divisor
        if (codes := tensors.pop("weight_packed", None)) is not None:
            tensors["weight"] = codes
        return tensors

    details = {"quant_algo": algorithm, "kv_cache_quant_algo": None, "group_size": 16}
    kept = [f"*{part}*" for part in quantize_model.KEPT]
    details["exclude_modules"] = ["lm_head", "*.gate", *kept]
    config = {"quant_method": "modelopt", "quantization": details}
    return replace(scheme, write=write, config=config)


def quark(scheme: Any, dtype: str, weights: str, inputs: str, dynamic: bool) -> Any:
    """As AMD's Quark does; weights and inputs: what shares a scale."""

    def write(layer: Any) -> dict[str, torch.Tensor]:
        tensors = scheme.write(layer)
        one = (tensors["weight_scale"].numel(),) if weights == "per_channel" else ()
        tensors["weight_scale"] = tensors["weight_scale"].float().view(one)
        return tensors

    def spec(shared: str, dynamic: bool, axis: int) -> dict[str, Any]:
        numbers = {"dtype": dtype, "is_dynamic": dynamic, "qscheme": shared, "symmetric": True}
        return numbers | {"ch_axis": axis if shared == "per_channel" else None, "group_size": None}

    layers = {"weight": spec(weights, False, 0), "input_tensors": spec(inputs, dynamic, 1)}
    config = {
        "quant_method": "quark",
        "quant_mode": "eager_mode",
        "export": {"kv_cache_group": [], "pack_method": "reorder"},
        "global_quant_config": layers | {"output_tensors": None, "bias": None},
        "layer_quant_config": {},
        "layer_type_quant_config": {},
        "exclude": ["lm_head"],
    }
    return replace(scheme, write=write, config=config)


def auto_round(scheme: Any, layout: str, sym: bool) -> Any:
    """As Intel's AutoRound describes a layout of another tool."""
    config = {key: scheme.config[key] for key in ("bits", "group_size")}
    config |= {"quant_method": "auto-round", "packing_format": f"auto_round:{layout}"}
    return replace(scheme, config=config | {"sym": sym, "data_type": "int"})


def bits_and_bytes(kind: str, double: bool = False) -> Any:
    """Written by that package as ``transformers`` has it; kind: nf4, fp4 or int8."""

    def write(layer: Any) -> dict[str, torch.Tensor]:
        from bitsandbytes import functional

        if kind == "int8":
            codes, scb, _ = functional.int8_vectorwise_quant(layer.weight.half())
            return {"weight": codes, "SCB": scb, "weight_format": torch.tensor(0).byte()}
        codes, state = functional.quantize_4bit(
            layer.weight, quant_type=kind, compress_statistics=double
        )
        parts = state.as_dict(packed=True).items()
        return {"weight": codes} | {f"weight.{name}": part for name, part in parts}

    config = {"quant_method": "bitsandbytes", "load_in_8bit": kind == "int8"}
    config |= {"load_in_4bit": kind != "int8", "bnb_4bit_quant_type": kind}
    return quantize_model.Scheme(write, config)


def schemes(known: dict[str, Any]) -> dict[str, Any]:
    """By name, made of the script's."""
    of_each = {f"{name}-of-each": nvfp4_of_each(known[name]) for name in ("nvfp4", "nvfp4a16")}
    return of_each | {
        "modelopt-nvfp4-of-each": modelopt(of_each["nvfp4-of-each"], "NVFP4"),
        "modelopt-fp8": modelopt(known["fp8-static"], "FP8"),
        "modelopt-nvfp4": modelopt(known["nvfp4"], "NVFP4"),
        "quark-fp8": quark(known["fp8-static"], "fp8_e4m3", "per_tensor", "per_tensor", False),
        "quark-int8": quark(known["w8a8"], "int8", "per_channel", "per_channel", True),
        "autoround-gptq": auto_round(known["gptq"], "auto_gptq", sym=True),
        "autoround-awq": auto_round(known["awq"], "auto_awq", sym=False),
        "bnb-nf4": bits_and_bytes("nf4", double=True),
        "bnb-fp4": bits_and_bytes("fp4"),
        "bnb-int8": bits_and_bytes("int8"),
    }
