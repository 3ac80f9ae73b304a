"""GGUF files of models with recurrent states hold the checkpoint as llama.cpp wants it.

That llama.cpp then computes the same model is compared by ``python -m benchmarks.recurrent
--check``, which needs llama.cpp.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

CONVERT = Path(__file__).resolve().parents[2] / "benchmarks/compare/convert"
COMMON = {
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
}
MAMBA = {"conv_kernel": 4, "layer_norm_epsilon": 1e-5}
CONFIGS: dict[str, dict[str, Any]] = {
    "mamba": {
        "intermediate_size": 64,
        "state_size": 16,
        "time_step_rank": 8,
        **MAMBA,
    },
    "mamba2": {
        "num_heads": 4,
        "head_dim": 16,
        "state_size": 16,
        "n_groups": 2,
        **MAMBA,
    },
    "granitemoehybrid": {
        "intermediate_size": 24,
        "shared_intermediate_size": 40,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_n_groups": 1,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "attention_multiplier": 0.5,
        "embedding_multiplier": 12,
        "logits_scaling": 6,
        "residual_multiplier": 0.25,
        "position_embedding_type": "nope",
    },
    "lfm2": {
        "intermediate_size": 96,
        "block_multiple_of": 16,
        "conv_L_cache": 3,
        "layer_types": ["conv", "conv", "full_attention", "conv"],
        "norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "qwen3_5_text": {
        "intermediate_size": 48,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    },
}
Tensors = dict[str, np.ndarray]


def half(first: bool) -> Callable[[np.ndarray], np.ndarray]:
    return lambda fused: np.split(fused, 2, axis=-2)[0 if first else 1]


# By model: tensor of the file -> tensor of the checkpoint, and what becomes of its values.
CHANGED: dict[str, dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]]] = {
    "mamba": {
        "blk.1.ssm_a": ("backbone.layers.1.mixer.A_log", lambda a: -np.exp(a)),
        "blk.1.ssm_conv1d.weight": ("backbone.layers.1.mixer.conv1d.weight", lambda w: w[:, 0]),
    },
    "mamba2": {
        "blk.1.ssm_a": ("backbone.layers.1.mixer.A_log", lambda a: -np.exp(a)[:, None]),
        "blk.1.ssm_d": ("backbone.layers.1.mixer.D", lambda d: d[:, None]),
        "blk.1.ssm_dt.bias": ("backbone.layers.1.mixer.dt_bias", lambda b: b),
        "blk.1.ssm_norm.weight": (
            "backbone.layers.1.mixer.norm.weight",
            lambda w: w.reshape(2, 32),
        ),
    },
    "granitemoehybrid": {
        "blk.1.ffn_gate_exps.weight": (
            "model.layers.1.block_sparse_moe.input_linear.weight",
            half(first=True),
        ),
        "blk.1.ffn_up_exps.weight": (
            "model.layers.1.block_sparse_moe.input_linear.weight",
            half(first=False),
        ),
        "blk.3.ffn_up_shexp.weight": (
            "model.layers.3.shared_mlp.input_linear.weight",
            half(first=False),
        ),
    },
    "lfm2": {
        "blk.0.shortconv.conv.weight": ("model.layers.0.conv.conv.weight", lambda w: w[:, 0]),
        "token_embd_norm.weight": ("model.embedding_norm.weight", lambda w: w),
    },
    "qwen3_5_text": {
        "blk.3.attn_q_norm.weight": ("model.layers.3.self_attn.q_norm.weight", lambda w: w + 1),
        "output_norm.weight": ("model.norm.weight", lambda w: w + 1),
        "blk.0.ssm_norm.weight": ("model.layers.0.linear_attn.norm.weight", lambda w: w),
        "blk.0.ssm_a": ("model.layers.0.linear_attn.A_log", lambda a: -np.exp(a)),
    },
}


def run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, CONVERT / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def make_checkpoint(folder: Path, model_type: str, **changes: Any) -> Tensors:
    """Writes it, and gives its tensors."""
    config = {"model_type": model_type, **COMMON, **CONFIGS[model_type], **changes}
    done = run("random_checkpoint.py", json.dumps(config), folder)
    assert done.returncode == 0, done.stderr
    loaded = load_file(folder / "model.safetensors")
    return {name: tensor.to(torch.float32).numpy() for name, tensor in loaded.items()}


@pytest.mark.parametrize("model_type", CONFIGS)
def test_file_holds_the_checkpoint(tmp_path: Path, model_type: str) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", model_type)
    done = run("to_gguf.py", tmp_path / "model", tmp_path / "model.gguf", "BF16")
    assert done.returncode == 0, done.stderr
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    tensors = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    sizes = sum(values.size for values in tensors.values())
    assert sizes == sum(values.size for values in checkpoint.values())
    for name, (origin, change) in CHANGED[model_type].items():
        np.testing.assert_allclose(tensors[name], change(checkpoint[origin]), 1e-6, err_msg=name)
    for tensor in reader.tensors:
        is_plain = "ssm_a" in tensor.name.split(".") or "conv" in tensor.name.split(".")[-2]
        if is_plain or len(tensor.shape) == 1:
            assert tensor.tensor_type.name == "F32", tensor.name
        if "proj" in tensor.name or "ffn_up" in tensor.name or "ssm_in" in tensor.name:
            assert tensor.tensor_type.name == "BF16", tensor.name
    if kinds := CONFIGS[model_type].get("layer_types"):
        architecture = reader.get_field("general.architecture").contents()
        heads = reader.get_field(f"{architecture}.attention.head_count_kv").contents()
        assert heads == [1 if kind == "full_attention" else 0 for kind in kinds]


def test_more_value_heads_than_key_heads_are_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "model", "qwen3_5_text", linear_num_value_heads=4)
    done = run("to_gguf.py", tmp_path / "model", tmp_path / "model.gguf", "F32")
    assert done.returncode != 0
    assert "as many key heads as value heads" in done.stderr
