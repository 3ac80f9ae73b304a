"""Mixtures of experts to test with.

The demo model as one (Mixtral's form) has 4 experts for each feed-forward network and uses 2.
Expert e is the original network, its output times SCALES[e].  Weights of the two that a random
router chooses sum to one, so the model still speaks, and which ones it chose shows in every logit.

The others are a small gpt-oss and a small Qwen3-MoE of random numbers.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from cpu_backend.gguf.architectures.tensors import ATTENTION, EXPERTS, FFN_NORM, HEAD_NORMS, OUTER
from cpu_backend.gguf.reader import GgufFile
from tests.e2e.gguf_copy import Changed, write, write_copy
from tests.reference.quant import E2M1, dequantize_nvfp4

SMALL: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts_per_tok": 3,
    "initializer_range": 0.05,
}
SCALES = (0.7, 0.9, 1.1, 1.3)
MATRICES = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def write_mixture(source: Path, target: Path) -> Path:
    """Write the Llama checkpoint ``source`` as a mixture of experts to ``target``."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((source / "config.json").read_text())
    config |= {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": len(SCALES),
        "num_experts_per_tok": 2,
        "sliding_window": None,
    }
    (target / "config.json").write_text(json.dumps(config))
    seeded = torch.Generator().manual_seed(0)
    tensors = {}
    for name, weight in load_file(source / "model.safetensors").items():
        block, _, matrix = name.removesuffix(".weight").rpartition(".mlp.")
        if not block:
            tensors[name] = weight
            continue
        for e, scale in enumerate(SCALES):
            expert = f"{block}.block_sparse_moe.experts.{e}.{MATRICES[matrix]}.weight"
            tensors[expert] = weight * scale if matrix == "down_proj" else weight.clone()
        if matrix == "gate_proj":
            router = torch.randn(len(SCALES), weight.shape[1], generator=seeded)
            tensors[f"{block}.block_sparse_moe.gate.weight"] = router.to(weight.dtype)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def write_mixture_gguf(source: Path, mixture: Path, target: Path) -> Path:
    """``source``, a GGUF file of the same Llama, as the mixture: the blocks of each gate and up
    projection several times, down projections in Q8_0, the routers of ``mixture``."""
    routers = load_file(mixture / "model.safetensors")
    types = gguf.GGMLQuantizationType

    def change(tensor: gguf.ReaderTensor) -> Changed:
        block, _, part = tensor.name.partition(".ffn_")
        data, kind, part = tensor.data, tensor.tensor_type, part.removesuffix(".weight")
        if part not in ("gate", "up", "down"):
            return {tensor.name: (data, kind)}
        experts = [data] * len(SCALES)
        if part == "down":
            values, kind = gguf.dequantize(data, kind), types.Q8_0
            experts = [gguf.quants.quantize(values * np.float32(s), kind) for s in SCALES]
        changed = {f"{block}.ffn_{part}_exps.weight": (np.stack(experts), kind)}
        if part == "gate":
            layer = block.removeprefix("blk.")
            router = routers[f"model.layers.{layer}.block_sparse_moe.gate.weight"]
            changed[f"{block}.ffn_gate_inp.weight"] = (router.float().numpy(), types.F32)
        return changed

    counts = {"llama.expert_count": len(SCALES), "llama.expert_used_count": 2}
    return write_copy(source, target, change, counts)


def write_qwen(target: Path, **changes: Any) -> Qwen3MoeConfig:
    """A small Qwen3-MoE in fp32, without a tokenizer; ``changes``: of its configuration."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        **SMALL,
        "intermediate_size": 512,
        "moe_intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_experts": 8,
        "norm_topk_prob": True,
        "max_position_embeddings": 2048,
    }
    config = Qwen3MoeConfig(**settings | changes)
    Qwen3MoeForCausalLM(config).save_pretrained(target)
    return config


def write_qwen_gguf(tokenizer: Path, folder: Path) -> tuple[Path, Path]:
    """The same, and as a GGUF file; ``tokenizer``: a GGUF file that has one."""
    checkpoint = folder / "checkpoint"
    config = write_qwen(checkpoint)
    weights = load_file(checkpoint / "model.safetensors")
    metadata = {
        key: value
        for key, value in GgufFile(tokenizer).metadata.items()
        if key.startswith("tokenizer.")
    }
    metadata |= {
        f"qwen3moe.{key}": value
        for key, value in {
            "block_count": config.num_hidden_layers,
            "context_length": config.max_position_embeddings,
            "embedding_length": config.hidden_size,
            "feed_forward_length": config.intermediate_size,
            "expert_feed_forward_length": config.moe_intermediate_size,
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "attention.head_count": config.num_attention_heads,
            "attention.head_count_kv": config.num_key_value_heads,
            "attention.key_length": config.head_dim,
            "attention.value_length": config.head_dim,
            "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            "rope.freq_base": config.rope_parameters["rope_theta"],
        }.items()
    }
    names = {here: there.name for here, there in OUTER.items()}
    for layer in range(config.num_hidden_layers):
        for here, there in (ATTENTION | FFN_NORM | HEAD_NORMS | EXPERTS).items():
            names[f"blk.{layer}.{here}"] = f"model.layers.{layer}.{there.name}"
    tensors = {}
    for here, there in names.items():
        if "{}" in there:
            data = torch.stack([weights[there.format(e)] for e in range(config.num_experts)])
        else:
            data = weights[there]
        tensors[here] = (data.numpy(), gguf.GGMLQuantizationType.F32)
    return checkpoint, write(folder / "qwen.gguf", "qwen3moe", metadata, tensors)


def write_dequantized(source: Path, target: Path) -> Path:
    """What the NVFP4 checkpoint ``source``, as compressed-tensors names it, stands for, in fp32."""
    target.mkdir()
    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    (target / "config.json").write_text(json.dumps(config))
    stored = load_file(source / "model.safetensors")
    tensors = {}
    for name, tensor in stored.items():
        layer, _, part = name.rpartition(".")
        if part == "weight_packed":
            scales, divisor = (stored[f"{layer}.weight_{p}"] for p in ("scale", "global_scale"))
            tensors[f"{layer}.weight"] = dequantize_nvfp4(tensor, scales, divisor[0])
        elif part not in ("weight_scale", "weight_global_scale", "input_global_scale"):
            tensors[name] = tensor
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def write_gpt_oss(tokenizer: Path, folder: Path) -> tuple[Path, Path]:
    """A small gpt-oss in fp32, and the same with its experts in MXFP4, as they are published."""
    torch.manual_seed(0)
    config = GptOssConfig(
        **SMALL,
        intermediate_size=128,
        num_hidden_layers=4,
        num_local_experts=8,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    model = GptOssForCausalLM(config)
    tensors = {}
    for name, weight in model.named_parameters():
        if name.endswith("bias") or name.endswith("sinks"):
            torch.nn.init.normal_(weight, std=0.3)
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales, rounded = _mxfp4(weight.data.transpose(1, 2))
            weight.data.copy_(rounded.transpose(1, 2))
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        else:
            weight.data.copy_(weight.data.bfloat16())
            tensors[name] = weight.data.bfloat16()
    plain, mxfp4 = folder / "plain", folder / "mxfp4"
    model.save_pretrained(plain)
    mxfp4.mkdir()
    save_file(tensors, mxfp4 / "model.safetensors", metadata={"format": "pt"})
    text = json.loads((plain / "config.json").read_text())
    kept = ["self_attn", "mlp.router", "embed_tokens", "lm_head"]
    text["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    (mxfp4 / "config.json").write_text(json.dumps(text | {"dtype": "bfloat16"}))
    for target in (plain, mxfp4):
        for path in tokenizer.glob("token*"):
            shutil.copy(path, target)
    return plain, mxfp4


def _mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[experts, out, in] as pairs of codes [..., in / 2], exponents [..., in / 32] and numbers."""
    groups = weight.unflatten(2, (-1, 32))
    exponents = torch.ceil(torch.log2(groups.abs().amax(-1) / 6))
    scaled = groups / torch.exp2(exponents)[..., None]
    size = torch.bucketize(scaled.abs().contiguous(), (E2M1[1:] + E2M1[:-1]) / 2)
    numbers = E2M1[size] * scaled.sign() * torch.exp2(exponents)[..., None]
    codes = (size + 8 * (scaled < 0)).to(torch.uint8)
    return (
        codes[..., ::2] | codes[..., 1::2] << 4,
        (exponents + 127).to(torch.uint8),
        numbers.flatten(2),
    )
