"""GGUF files of latent attention and of routed experts: both forms of kv_b_proj, what routers say,
and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from cpu_backend.errors import ConfigError
from cpu_backend.gguf.checkpoint import Checkpoint
from cpu_backend.gguf.reader import GgufFile

HEADS, KEY, ROTATED, VALUE, RANK, HIDDEN, FFN, EXPERTS, EXPERT_FFN = 2, 8, 4, 6, 16, 32, 48, 4, 24
KV_B = "model.layers.1.self_attn.kv_b_proj.weight"
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 40.0,
    "rope.scaling.original_context_length": 64,
}
FIELDS: dict[str, Any] = {
    "block_count": 2,
    "context_length": 128,
    "embedding_length": HIDDEN,
    "feed_forward_length": FFN,
    "attention.head_count": HEADS,
    "attention.head_count_kv": 1,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.kv_lora_rank": RANK,
    "attention.key_length": RANK + ROTATED,
    "attention.value_length": RANK,
    "attention.key_length_mla": KEY + ROTATED,
    "attention.value_length_mla": VALUE,
    "rope.dimension_count": ROTATED,
    "leading_dense_block_count": 1,
    "expert_count": EXPERTS,
    "expert_used_count": 2,
    "expert_shared_count": 1,
    "expert_feed_forward_length": EXPERT_FFN,
    "expert_weights_scale": 2.5,
}


def latent_tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (64, HIDDEN),
        "output.weight": (64, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(2):
        parts: dict[str, tuple[int, ...]] = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HEADS * (KEY + ROTATED), HIDDEN),
            "attn_kv_a_mqa": (RANK + ROTATED, HIDDEN),
            "attn_kv_a_norm": (RANK,),
            "attn_k_b": (HEADS, RANK, KEY),
            "attn_v_b": (HEADS, VALUE, RANK),
            "attn_output": (HIDDEN, HEADS * VALUE),
            "ffn_norm": (HIDDEN,),
        }
        if layer == 0:
            parts |= {"ffn_gate": (FFN, HIDDEN), "ffn_up": (FFN, HIDDEN), "ffn_down": (HIDDEN, FFN)}
        else:
            wide = {"gate": (EXPERT_FFN, HIDDEN), "up": (EXPERT_FFN, HIDDEN)}
            wide |= {"down": (HIDDEN, EXPERT_FFN)}
            parts |= {f"ffn_{name}_exps": (EXPERTS, *shape) for name, shape in wide.items()}
            parts |= {f"ffn_{name}_shexp": shape for name, shape in wide.items()}
            parts["ffn_gate_inp"] = (EXPERTS, HIDDEN)
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def read(
    tmp_path: Path,
    fields: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> Checkpoint:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "deepseek2")
    writer.add_tokenizer_model("no_vocab")
    adders = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in {**FIELDS, **(fields or {})}.items():
        if value is not None:
            adders[type(value)](f"deepseek2.{key}", value)
    for name, weight in (latent_tensors() if tensors is None else tensors).items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Checkpoint(GgufFile(path, vocabulary=False))


def whole(tensors: dict[str, np.ndarray], layer: int) -> np.ndarray:
    """kv_b_proj: of each head first the keys, then the values."""
    keys, values = (tensors[f"blk.{layer}.attn_{of}_b.weight"] for of in "kv")
    return np.concatenate((keys.transpose(0, 2, 1), values), 1).reshape(-1, RANK)


def test_the_matrix_of_keys_and_values_is_made_of_two(tmp_path: Path) -> None:
    checkpoint = read(tmp_path)
    found = checkpoint.values(checkpoint.entries[KV_B]).numpy()
    assert np.array_equal(found, whole(latent_tensors(), 1))
    config = checkpoint.config
    assert (config["qk_nope_head_dim"], config["qk_rope_head_dim"]) == (KEY, ROTATED)
    assert (config["v_head_dim"], config["q_lora_rank"]) == (VALUE, None)


@pytest.mark.parametrize("both", [False, True])
def test_older_files_have_it_as_it_is(tmp_path: Path, both: bool) -> None:
    tensors = latent_tensors()
    for layer in range(2):
        tensors[f"blk.{layer}.attn_kv_b.weight"] = whole(tensors, layer)
    if not both:
        tensors = {name: t for name, t in tensors.items() if "_k_b" not in name}
        tensors = {name: t for name, t in tensors.items() if "_v_b" not in name}
    lengths: dict[str, Any] = {
        "attention.key_length": KEY + ROTATED,
        "attention.value_length": VALUE,
        "attention.key_length_mla": None,
        "attention.value_length_mla": None,
    }
    checkpoint = read(tmp_path, lengths, tensors)
    found = checkpoint.values(checkpoint.entries[KV_B]).numpy()
    assert np.array_equal(found, whole(latent_tensors(), 1))
    assert not checkpoint.entries[KV_B].as_numbers


def test_the_router_says_which_class_it_is(tmp_path: Path) -> None:
    config = read(tmp_path).config
    assert config["architectures"] == ["DeepseekV2ForCausalLM"]
    assert (config["topk_method"], config["scoring_func"]) == ("greedy", "softmax")
    bias = {"blk.1.exp_probs_b.bias": np.ones(EXPERTS, np.float32)}
    fields: dict[str, Any] = {"expert_gating_func": 2, "expert_group_count": 2}
    config = read(tmp_path, fields, latent_tensors() | bias).config
    assert config["architectures"] == ["DeepseekV3ForCausalLM"]
    assert (config["topk_method"], config["scoring_func"]) == ("noaux_tc", "sigmoid")
    assert (config["n_group"], config["topk_group"]) == (2, 1)


def test_scales_of_positions_are_those_of_deepseek(tmp_path: Path) -> None:
    scaling = read(tmp_path, {**YARN, "rope.scaling.yarn_log_multiplier": 0.0707}).config[
        "rope_scaling"
    ]
    assert (scaling["mscale"], scaling["mscale_all_dim"]) == (0.707, 0.707)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (YARN, "scales its positions otherwise than DeepSeek"),
        ({"expert_gating_func": 4}, "chooses experts by the function 4"),
        ({"expert_group_count": 3}, "uses 1 of 3 groups of experts"),
        ({"expert_shared_count": 0}, "no shared experts"),
        ({"attention.temperature_scale": 0.1}, "scales queries by their positions"),
        ({"attention.key_length_mla": ROTATED}, "rotates 4 of 4 channels"),
    ],
)
def test_what_differs_is_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read(tmp_path, fields)


def test_a_table_that_multiplies_has_to_be_packed(tmp_path: Path) -> None:
    tensors = latent_tensors()
    del tensors["output.weight"]
    with pytest.raises(ConfigError, match="no output layer of its own"):
        read(tmp_path, tensors=tensors)
