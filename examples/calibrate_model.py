"""Write a calibrated, quantized checkpoint with llmcompressor or GPTQModel.

    python examples/calibrate_model.py SCHEME SOURCE TARGET TEXT

SOURCE is a folder with a checkpoint, TEXT a file of the kind of text that the model will work on; a
few samples of 256 tokens are taken from its start.  Runs on CPUs, in an environment of its own with
`pip install llmcompressor` or `pip install gptqmodel`, whichever the scheme needs.  On two cores
GPTQModel 7.7 wants GPTQMODEL_CPU_WORKERS=2, and AWQ takes it a quarter of an hour.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

SAMPLES = 6
SAMPLE_TOKENS = 256
GROUP = 64  # channels that share a scale: small models need small groups

PRESETS = {"w8a8": "W8A8", "fp8": "FP8_DYNAMIC", "fp8-block": "FP8_BLOCK"}
LLMCOMPRESSOR = (*PRESETS, "w8a8-smooth", "w4a16", "w4a16-gptq")
GPTQMODEL = ("gptq", "awq")


def samples(tokenizer: Any, text: Path) -> list[dict[str, list[int]]]:
    """The first pieces of the text as token ids."""
    ids = tokenizer(text.read_text()).input_ids
    starts = range(0, len(ids) - SAMPLE_TOKENS, SAMPLE_TOKENS)
    pieces = [ids[i : i + SAMPLE_TOKENS] for i in starts][:SAMPLES]
    return [{"input_ids": piece, "attention_mask": [1] * SAMPLE_TOKENS} for piece in pieces]


def with_llmcompressor(scheme: str, source: Path, target: Path, text: Path) -> None:
    """compressed-tensors checkpoints."""
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
    from transformers import AutoModelForCausalLM, AutoTokenizer

    layers = {"targets": "Linear", "ignore": ["lm_head"]}
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
    group: dict[str, Any] = {
        "targets": ["Linear"],
        "weights": {**weights, "symmetric": scheme == "w4a16-gptq"},
    }
    int4 = {"config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    if scheme == "w8a8-smooth":
        smooth = SmoothQuantModifier(smoothing_strength=0.8)
        recipe: Any = [smooth, GPTQModifier(**layers, scheme="W8A8")]
    elif scheme == "w4a16":
        recipe = QuantizationModifier(**int4)
    elif scheme == "w4a16-gptq":
        group["weights"]["actorder"] = "weight"
        recipe = GPTQModifier(**int4)
    else:
        recipe = QuantizationModifier(**layers, scheme=PRESETS[scheme])
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(source)
    data = Dataset.from_list(samples(tokenizer, text))
    oneshot(
        model=model,
        recipe=recipe,
        dataset=data,
        max_seq_length=SAMPLE_TOKENS,
        num_calibration_samples=len(data),
    )
    model.save_pretrained(target, save_compressed=True)
    tokenizer.save_pretrained(target)


def with_gptqmodel(scheme: str, source: Path, target: Path, text: Path) -> None:
    """A GPTQ or AWQ checkpoint."""
    from gptqmodel import GPTQModel, QuantizeConfig
    from transformers import AutoTokenizer

    layout = {"quant_method": "awq", "format": "gemm"} if scheme == "awq" else {"desc_act": False}
    config = QuantizeConfig(bits=4, group_size=GROUP, **layout)
    model = GPTQModel.load(str(source), config, device="cpu")
    model.quantize(samples(AutoTokenizer.from_pretrained(source), text), batch_size=1)
    model.save(str(target))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scheme", choices=[*LLMCOMPRESSOR, *GPTQMODEL])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("text", type=Path)
    options = parser.parse_args()
    paths = (options.source, options.target, options.text)
    quantize = with_gptqmodel if options.scheme in GPTQMODEL else with_llmcompressor
    quantize(options.scheme, *paths)


if __name__ == "__main__":
    main()
