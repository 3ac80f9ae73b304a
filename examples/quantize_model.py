"""Write a quantized checkpoint of a Llama-like model, in the formats that people have; of one that
takes images or sounds too, the text's layers.

    python examples/quantize_model.py SCHEME SOURCE TARGET

Weights are rounded to nearest, without calibration data; the static schemes measure the range of
activations on one paragraph.  Tools that calibrate (llmcompressor, GPTQModel, AutoAWQ) make better
checkpoints of the same formats: this one makes one of every kind from the weights alone, so that
every path of a backend can be tried.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

PROJECTIONS = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3",
)  # fmt: skip
# Layers that keep their numbers, by a part of their names: encoders of images and sounds, and what
# feeds recurrent states.
KEPT = (
    "visual", "vision", "audio", "encoder", "projector", "connector", "linear_attn", "in_proj",
    "out_proj",
)  # fmt: skip
PARAGRAPH = (
    "The harbour lay quiet in the grey of the morning. Three boats came in with their nets full, "
    "and the men sang as they carried the baskets up the steps to the market."
)


# ---- arithmetic ----------------------------------------------------------------------------------


def grouped(weight: torch.Tensor, group: int) -> torch.Tensor:
    """[out, groups, group] of a weight [out, in]."""
    return weight.float().unflatten(1, (-1, group))


def symmetric(
    weight: torch.Tensor, bits: int, group: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Signed codes [out, in] and scales [out, groups], of a few the ones of least squared error."""
    groups, highest = grouped(weight, group), 2 ** (bits - 1) - 1
    largest = groups.abs().amax(-1)
    best = torch.full_like(largest, float("inf"))
    scales = largest
    for shrink in (1.0,) if bits == 8 else (1.0, 0.9, 0.8):  # clipping pays where steps are coarse
        scale = (largest * shrink / highest).to(dtype).float().clamp(min=1e-12)
        codes = (groups / scale[..., None]).round().clamp(-highest - 1, highest)
        error = (codes * scale[..., None] - groups).square().sum(-1)
        scales = torch.where(error < best, scale, scales)
        best = torch.minimum(best, error)
    codes = (groups / scales[..., None]).round().clamp(-highest - 1, highest)
    return codes.flatten(1).to(torch.int8), scales.to(dtype)


def asymmetric(
    weight: torch.Tensor, bits: int, group: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unsigned codes [out, in], scales and zero points [out, groups]."""
    groups, highest = grouped(weight, group), 2**bits - 1
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scales = ((high - low) / highest).to(dtype).float().clamp(min=1e-12)
    zeros = (-low / scales).round().clamp(0, highest)
    codes = ((groups / scales[..., None]).round() + zeros[..., None]).clamp(0, highest)
    return codes.flatten(1).to(torch.uint8), scales.to(dtype), zeros.to(torch.uint8)


def stream(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Unsigned codes [rows, size] as int32 words of a stream of bits, lowest first."""
    rows, size = codes.shape
    if 32 % bits == 0:
        padded = torch.nn.functional.pad(codes, (0, -size % (32 // bits)))
        parts = padded.reshape(rows, -1, 32 // bits).int()
        return (parts << torch.arange(0, 32, bits, dtype=torch.int32)).sum(-1, dtype=torch.int32)
    bit = (codes.long()[:, :, None] >> torch.arange(bits)) & 1
    padded = torch.nn.functional.pad(bit.reshape(rows, -1), (0, -size * bits % 32))
    words = (padded.view(rows, -1, 32) << torch.arange(32)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


# ---- formats -------------------------------------------------------------------------------------

Tensors = dict[str, torch.Tensor]


@dataclass
class Layer:
    """One linear layer of the source."""

    name: str
    weight: torch.Tensor
    inputs: tuple[float, float]  # least and largest activation, if measured


@dataclass
class Scheme:
    """How a layer is written, and what config.json says about it."""

    write: Callable[[Layer], Tensors]
    config: dict[str, Any] = field(default_factory=dict)
    measures_inputs: bool = False


def compressed_tensors(
    write: Callable[[Layer], Tensors],
    layout: str,
    weights: dict[str, Any],
    inputs: dict[str, Any] | None = None,
) -> Scheme:
    """One config group for all linear layers but the logits, the routers of mixtures and KEPT."""
    common = {"type": "int", "dynamic": False, "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": common | weights,
        "input_activations": None if inputs is None else common | inputs,
        "format": layout,
    }
    config = {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "ignore": ["lm_head", r"re:.*\.gate$", *(f"re:.*{part}.*" for part in KEPT)],
        "config_groups": {"group_0": group},
    }
    static = inputs is not None and not inputs.get("dynamic", False)
    return Scheme(write, config, measures_inputs=static)


def w8a8(strategy: str, dynamic: bool, azp: bool) -> Scheme:
    """int8 weights per channel or per tensor, int8 activations."""

    def write(layer: Layer) -> Tensors:
        weight = layer.weight if strategy == "channel" else layer.weight.reshape(1, -1)
        codes, scales = symmetric(weight, 8, weight.shape[1], torch.float32)
        tensors = {
            "weight": codes.view(layer.weight.shape),
            "weight_scale": scales if strategy == "channel" else scales.view(1),
        }
        if not dynamic:
            low, high = layer.inputs
            scale = (high - low) / 255 if azp else max(-low, high) / 127
            tensors["input_scale"] = torch.tensor([scale])
            if azp:
                zero = torch.tensor([-128 - low / scale])
                tensors["input_zero_point"] = zero.round().to(torch.int8)
        return tensors

    inputs: dict[str, Any] = {"num_bits": 8, "symmetric": not azp, "dynamic": dynamic}
    inputs["strategy"] = "token" if dynamic else "tensor"
    weights = {"num_bits": 8, "strategy": strategy}
    return compressed_tensors(write, "int-quantized", weights, inputs)


def packed(bits: int, group: int, zero_points: bool = False) -> Scheme:
    """Weight-only integers in words (pack-quantized)."""

    def write(layer: Layer) -> Tensors:
        out_features, in_features = layer.weight.shape
        size = group or in_features
        if zero_points:
            codes, scales, zeros = asymmetric(layer.weight, bits, size, torch.bfloat16)
        else:
            signed, scales = symmetric(layer.weight, bits, size, torch.bfloat16)
            codes = (signed.int() + 2 ** (bits - 1)).to(torch.uint8)
        tensors = {
            "weight_packed": stream(codes, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor([out_features, in_features]),
        }
        if zero_points:
            tensors["weight_zero_point"] = stream(zeros.t(), bits).t().contiguous()
        return tensors

    weights: dict[str, Any] = {"num_bits": bits, "symmetric": not zero_points}
    weights |= {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    return compressed_tensors(write, "pack-quantized", weights)


def w4a8(group: int) -> Scheme:
    """int4 weights kept one per byte, int8 activations per token."""

    def write(layer: Layer) -> Tensors:
        codes, scales = symmetric(layer.weight, 4, group, torch.bfloat16)
        return {"weight": codes, "weight_scale": scales}

    weights = {"num_bits": 4, "strategy": "group", "group_size": group}
    inputs = {"num_bits": 8, "strategy": "token", "dynamic": True}
    return compressed_tensors(write, "int-quantized", weights, inputs)


def gptq(
    bits: int, group: int, sym: bool = True, desc_act: bool = False, v2: bool = False
) -> Scheme:
    """GPTQ's layout; with desc_act in any order, which layers of the same inputs share as they do
    where the inputs' magnitudes give it."""

    def write(layer: Layer) -> Tensors:
        in_features = layer.weight.shape[1]
        size = in_features if group == -1 else group
        order = torch.arange(in_features)
        if desc_act:
            order = torch.randperm(in_features, generator=torch.Generator().manual_seed(0))
        sorted_weight = layer.weight[:, order]
        if sym:
            signed, scales = symmetric(sorted_weight, bits, size, torch.float16)
            codes = (signed.int() + 2 ** (bits - 1)).to(torch.uint8)
            zeros = torch.full(scales.shape, 2 ** (bits - 1), dtype=torch.uint8)
        else:
            codes, scales, zeros = asymmetric(sorted_weight, bits, size, torch.float16)
            if not v2:  # stored less one, so one is the least
                zeros = zeros.clamp(min=1)
        back = order.argsort()
        stored = zeros if v2 else zeros - 1
        return {
            "qweight": stream(codes[:, back], bits).t().contiguous(),
            "scales": scales.t().contiguous(),
            "qzeros": stream(stored.t().contiguous(), bits),
            "g_idx": (back // size).to(torch.int32),
        }

    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "sym": sym,
        "desc_act": desc_act,
        "lm_head": False,
        "checkpoint_format": "gptq_v2" if v2 else "gptq",
    }
    return Scheme(write, config)


def awq(group: int) -> Scheme:
    """AWQ's layout (4 bits, zero points, eight columns per word out of order)."""

    def write(layer: Layer) -> Tensors:
        codes, scales, zeros = asymmetric(layer.weight, 4, group, torch.float16)

        def words(table: torch.Tensor) -> torch.Tensor:
            mixed = table.unflatten(1, (-1, 8))[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].flatten(1)
            return stream(mixed, 4)

        return {
            "qweight": words(codes.t()),
            "qzeros": words(zeros.t()),
            "scales": scales.t().contiguous(),
        }

    config = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": ["lm_head", *KEPT],
    }
    return Scheme(write, config)


FP8_MAX = 448.0


def fp8(rows: int, columns: int, static: bool = False) -> Scheme:
    """e4m3 weights; a scale per block of rows x columns, 0 being all of them."""

    def write(layer: Layer) -> Tensors:
        out_features, in_features = layer.weight.shape
        high, wide = rows or out_features, columns or in_features
        padded = torch.nn.functional.pad(
            layer.weight.float(), (0, -in_features % wide, 0, -out_features % high)
        )
        blocks = padded.unflatten(0, (-1, high)).unflatten(2, (-1, wide))
        scales = blocks.abs().amax((1, 3)).clamp(min=1e-12) / FP8_MAX
        codes = (blocks / scales[:, None, :, None]).flatten(2).flatten(0, 1)
        tensors = {
            "weight": codes[:out_features, :in_features].to(torch.float8_e4m3fn),
            "weight_scale": scales if rows else scales.view(1),
        }
        if static:
            low, top = layer.inputs
            tensors["input_scale"] = torch.tensor([max(-low, top) / FP8_MAX])
        return tensors

    weights = {"num_bits": 8, "type": "float"}
    inputs = {"num_bits": 8, "type": "float", "dynamic": not static}
    if rows > 1:
        weights |= {"strategy": "block", "block_structure": [rows, columns]}
        inputs |= {"strategy": "group", "group_size": columns}
    else:
        weights["strategy"] = "channel" if rows else "tensor"
        inputs["strategy"] = "tensor" if static else "token"
    return compressed_tensors(write, "float-quantized", weights, inputs)


def fp8_deepseek() -> Scheme:
    """e4m3 in blocks of 64 x 64 under the names of DeepSeek's checkpoints."""
    blocks = fp8(64, 64)

    def write(layer: Layer) -> Tensors:
        tensors = blocks.write(layer)
        tensors["weight_scale_inv"] = tensors.pop("weight_scale")
        return tensors

    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [64, 64]}
    return Scheme(write, config)


def exponents(weight: torch.Tensor, largest: float) -> torch.Tensor:
    """e8m0 [out, in / 32]: the least power of two that brings a block of 32 to `largest`."""
    peaks = grouped(weight, 32).abs().amax(-1).clamp(min=2.0**-100)
    return (torch.log2(peaks / largest).ceil() + 127).to(torch.uint8)


def mxfp8() -> Scheme:
    """e4m3 with a power of two per 32 channels."""

    def write(layer: Layer) -> Tensors:
        scales = exponents(layer.weight, FP8_MAX)
        codes = grouped(layer.weight, 32) / torch.exp2(scales.float() - 127)[..., None]
        return {"weight": codes.flatten(1).to(torch.float8_e4m3fn), "weight_scale": scales}

    common = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}
    common |= {"scale_dtype": "torch.uint8"}
    inputs = common | {"dynamic": True}
    return compressed_tensors(write, "mxfp8-quantized", common, inputs)


def e2m1(values: torch.Tensor) -> torch.Tensor:
    """Codes of the nearest of its numbers, of rows [rows, in], two in each byte."""
    numbers = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    codes = torch.bucketize(values.abs(), (numbers[1:] + numbers[:-1]) / 2)
    codes = (codes + 8 * (values < 0)).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4


def mxfp4() -> Scheme:
    """e2m1 with a power of two per 32 channels, two codes per byte."""

    def write(layer: Layer) -> Tensors:
        scales = exponents(layer.weight, 6.0)
        values = grouped(layer.weight, 32) / torch.exp2(scales.float() - 127)[..., None]
        return {"weight_packed": e2m1(values.flatten(1)), "weight_scale": scales}

    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
    weights |= {"scale_dtype": "torch.uint8"}
    return compressed_tensors(write, "mxfp4-pack-quantized", weights)


def nvfp4(four_bit_inputs: bool) -> Scheme:
    """e2m1 with an e4m3 scale per 16 channels, of which a number in fp32 is left out."""
    # For a largest weight of 4, in every layer: many backends need one where they merge layers.
    left_out = FP8_MAX * 6.0 / 4.0

    def write(layer: Layer) -> Tensors:
        groups = grouped(layer.weight, 16)
        scales = groups.abs().amax(-1) / 6.0 * left_out
        scales = scales.clamp(2.0**-9, FP8_MAX).to(torch.float8_e4m3fn)
        values = groups / (scales.float() / left_out)[..., None]
        tensors = {"weight_packed": e2m1(values.flatten(1)), "weight_scale": scales}
        tensors["weight_global_scale"] = torch.tensor([left_out])
        if four_bit_inputs:
            tensors["input_global_scale"] = torch.tensor([left_out])
        return tensors

    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    inputs = {**weights, "dynamic": "local"} if four_bit_inputs else None
    return compressed_tensors(write, "nvfp4-pack-quantized", weights, inputs)


SCHEMES = {
    "w8a8": w8a8("channel", dynamic=True, azp=False),
    "w8a8-azp": w8a8("channel", dynamic=True, azp=True),
    "w8a8-tensor": w8a8("tensor", dynamic=True, azp=False),
    "w8a8-static": w8a8("channel", dynamic=False, azp=False),
    "w8a8-static-azp": w8a8("tensor", dynamic=False, azp=True),
    "w8a16": packed(8, 0),
    "w4a16": packed(4, 32),
    "w4a16-zp": packed(4, 64, zero_points=True),
    "w4a8": w4a8(32),
    "gptq": gptq(4, 64),
    "gptq-zp": gptq(4, 32, sym=False),
    "gptq-v2": gptq(4, 32, sym=False, v2=True),
    "gptq-act-order": gptq(4, 32, desc_act=True),
    "gptq-8": gptq(8, -1),
    "gptq-3": gptq(3, 32, sym=False),
    "gptq-2": gptq(2, 32, sym=False),
    "awq": awq(64),
    "fp8": fp8(1, 0),
    "fp8-tensor": fp8(0, 0),
    "fp8-static": fp8(0, 0, static=True),
    "fp8-block": fp8(64, 64),
    "fp8-deepseek": fp8_deepseek(),
    "mxfp8": mxfp8(),
    "mxfp4": mxfp4(),
    "nvfp4": nvfp4(four_bit_inputs=True),
    "nvfp4a16": nvfp4(four_bit_inputs=False),
}


# ---- checkpoints ---------------------------------------------------------------------------------


def measure_inputs(source: Path) -> dict[str, tuple[float, float]]:
    """Least and largest input of every linear layer on one paragraph."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    ranges: dict[str, tuple[float, float]] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(_: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            ranges[name] = (min(0.0, float(args[0].min())), max(0.0, float(args[0].max())))

        return hook

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(watch(name))
    ids = AutoTokenizer.from_pretrained(source)(PARAGRAPH, return_tensors="pt").input_ids
    with torch.no_grad():
        model(ids)
    return ranges


def quantize(scheme: Scheme, source: Path, target: Path) -> None:
    """Every projection of the text quantized, everything else as it is."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix != ".safetensors" and path.name != "config.json" and path.is_file():
            shutil.copy(path, target)
    inputs = measure_inputs(source) if scheme.measures_inputs else {}
    tensors: Tensors = {}
    for path in sorted(source.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            layer = name.removesuffix(".weight")
            kept = any(part in layer for part in KEPT)
            if kept or layer.rpartition(".")[2] not in PROJECTIONS:
                tensors[name] = tensor
                continue
            written = scheme.write(Layer(layer, tensor, inputs.get(layer, (0.0, 0.0))))
            tensors.update({f"{layer}.{part}": t.contiguous() for part, t in written.items()})
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = scheme.config
    (target / "config.json").write_text(json.dumps(config, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scheme", choices=list(SCHEMES))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    quantize(SCHEMES[options.scheme], options.source, options.target)


if __name__ == "__main__":
    main()
