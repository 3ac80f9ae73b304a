# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Contributors to vllm-cpu-backend
"""A small made-up GGUF file becomes the checkpoint it was made from."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM

from cpu_backend.demo_model import make_demo_model
from cpu_backend.gguf.weights import undo_rope_permutation
from tests.plugin.gguf_samples import checkpoint_weights, rope_permutation, write_passing_gguf


@pytest.fixture
def model(tmp_path, monkeypatch):
    """The checkpoint folder made from a small GGUF file."""
    return make_demo_model(tmp_path / "model", write_passing_gguf(tmp_path, monkeypatch))


@pytest.mark.parametrize(("num_heads", "head_dim"), [(1, 2), (3, 64), (9, 64), (5, 6)])
def test_undo_rope_permutation_restores_row_order(num_heads, head_dim):
    weight = np.arange(num_heads * head_dim * 7, dtype=np.float32).reshape(-1, 7)
    permuted = rope_permutation(weight, num_heads)
    assert head_dim == 2 or not np.array_equal(permuted, weight)
    restored = undo_rope_permutation(torch.from_numpy(permuted), num_heads)
    np.testing.assert_array_equal(restored.numpy(), weight)


def test_conversion_restores_every_weight(model):
    made = load_file(model / "model.safetensors")
    weights = checkpoint_weights()
    assert made.keys() == weights.keys()
    for name, weight in weights.items():
        assert made[name].dtype == torch.bfloat16
        np.testing.assert_array_equal(made[name].float().numpy(), weight, err_msg=name)


def test_conversion_dequantizes_before_undoing_the_permutation(tmp_path, monkeypatch):
    path = write_passing_gguf(tmp_path, monkeypatch, quantized="blk.1.attn_k.weight")
    made = load_file(make_demo_model(tmp_path / "model", path) / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    weight = checkpoint_weights()[name]
    # Q8_0 rounds to 1/127 of the largest of 32 values, bf16 to 2^-9 of the value.
    np.testing.assert_allclose(made[name].float().numpy(), weight, atol=np.abs(weight).max() / 127)


def test_converted_checkpoint_loads_without_missing_weights(model):
    _, report = LlamaForCausalLM.from_pretrained(model, output_loading_info=True)
    assert not any(report[keys] for keys in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_converted_tokenizer_splits_digits_before_merging(model):
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert tokenizer.tokenize("the 12") == ["t", "he", "Ġ", "1", "2"]


def test_weights_are_as_readable_as_the_other_files(model):
    assert len({path.stat().st_mode for path in model.iterdir()}) == 1
