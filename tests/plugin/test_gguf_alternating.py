"""GGUF files of models whose layers differ: what each kind of layer has, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from cpu_backend.errors import ConfigError
from cpu_backend.gguf.architectures import find
from cpu_backend.gguf.reader import GgufFile

HEAD, HIDDEN, ROWS = 8, 32, 64
FIELDS: dict[str, Any] = {
    "block_count": 3,
    "context_length": 128,
    "embedding_length": HIDDEN,
    "feed_forward_length": 48,
    "attention.head_count": [4, 6, 6],
    "attention.head_count_kv": [2, 3, 3],
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.sliding_window": 16,
    "attention.sliding_window_pattern": [False, True, True],
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 24,
    "expert_shared_feed_forward_length": 24,
    "expert_weights_norm": True,
    "rope.freq_base": 500000.0,
    "rope.freq_base_swa": 10000.0,
}
UNIFORM = {"attention.head_count": 4, "attention.head_count_kv": 2}
# The first layer is dense.
TENSORS = {
    "token_embd.weight": (ROWS, HIDDEN),
    "output.weight": (ROWS, HIDDEN),
    "blk.0.ffn_up.weight": (48, HIDDEN),
    "blk.0.attn_gate.weight": (4, HIDDEN),
}


def config(
    folder: Path,
    name: str,
    fields: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """What config.json would say of a file of the architecture ``name``; None takes a field out."""
    writer = gguf.GGUFWriter(folder / "model.gguf", name)
    adders: dict[type, Any] = {
        bool: writer.add_bool,
        float: writer.add_float32,
        int: writer.add_uint32,
        list: writer.add_array,
    }
    for key, value in {**FIELDS, **(fields or {})}.items():
        if value is not None:
            adders[type(value)](f"{name}.{key}", value)
    for tensor, shape in TENSORS.items():
        writer.add_tensor(tensor, np.ones(shape, np.float32))
    for tensor, values in (tensors or {}).items():
        writer.add_tensor(tensor, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return find(GgufFile(folder / "model.gguf", vocabulary=False)).config()


def test_layers_with_windows_have_heads_of_their_own(tmp_path: Path) -> None:
    step = config(tmp_path, "step35")
    assert (step["num_attention_heads"], step["num_attention_groups"]) == (4, 2)
    other = step["attention_other_setting"]
    assert (other["num_attention_heads"], other["num_attention_groups"]) == (6, 3)
    assert step["rope_theta"] == [500000.0, 10000.0, 10000.0]
    assert step["partial_rotary_factors"] == [0.5, 1.0, 1.0]
    assert step["moe_layers_enum"] == "1,2"
    laguna = config(tmp_path, "laguna")
    assert laguna["num_attention_heads_per_layer"] == [4, 6, 6]
    assert laguna["gating"] is True


def test_a_gate_for_every_channel_is_told_by_its_shape(tmp_path: Path) -> None:
    counts = {"attention.head_count": 1, "attention.head_count_kv": 1}
    lengths = {"attention.key_length": 4, "attention.value_length": 4}  # the gate has as many rows
    assert config(tmp_path, "laguna", counts | lengths)["gating"] == "per-element"


def test_factors_of_positions_are_for_half_of_each_head(tmp_path: Path) -> None:
    # Of two pairs that turn, the slow one does so less than once in 131072 positions.
    factors = {"rope_freqs.weight": np.array([1, 1, 1, 1], np.float32)}
    theta = {"rope.freq_base": 1e12}
    with pytest.raises(ConfigError, match="not those of Llama 3"):
        config(tmp_path, "step35", theta, {"rope_freqs.weight": np.array([1, 1, 2, 1], "f4")})
    factors["rope_freqs.weight"][1] = 2
    scaling = config(tmp_path, "step35", theta, factors)["rope_scaling"]
    assert (scaling["rope_type"], scaling["factor"]) == ("llama3", 2.0)
    assert (scaling["high_freq_factor"], scaling["original_max_position_embeddings"]) == (
        32.0,
        131072,
    )


def test_halves_of_layers_may_be_missing(tmp_path: Path) -> None:
    blocks = config(
        tmp_path,
        "deci",
        {
            "attention.head_count": [4, 0, 4],
            "attention.head_count_kv": [2, 0, 1],
            "feed_forward_length": [48, 96, 0],
            "expert_count": None,
        },
    )["block_configs"]
    assert [block["attention"] for block in blocks] == [
        {"no_op": False, "n_heads_in_group": 2},
        {"no_op": True},
        {"no_op": False, "n_heads_in_group": 4},
    ]
    assert [block["ffn"].get("intermediate_size") for block in blocks] == [48, 96, None]


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("step35", {"attention.head_count": [4, 6, 8]}, "different numbers in 'attention.head_co"),
        ("step35", {"attention.sliding_window_pattern": None}, "which of its layers have windows"),
        ("step35", {"swiglu_clamp_exp": [0.0, 0.0, 5.0]}, "has .*5.0.* in the field"),
        ("step35", {"swiglu_clamp_shexp": [0.0, -1.0, 0.0]}, "has .*-1.0.* in the field"),
        ("step35", {"moe_every_n_layers": 2}, "other layers with experts"),
        ("mimo2", {}, "layers with different numbers of heads"),
        ("laguna", {"expert_weights_norm": False}, "whose weights do not sum to 1"),
        ("deci", {"attention.head_count_kv": [2, 0, 2]}, "different numbers of heads"),
        (
            "deci",
            {"attention.head_count": 4, "attention.head_count_kv": [2, 0, 2]},
            "one matrix in place of their attention",
        ),
        ("hy_v3", UNIFORM | {"expert_shared_feed_forward_length": 25}, "of another width"),
    ],
)
def test_what_differs_is_refused(
    tmp_path: Path, name: str, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        config(tmp_path, name, fields)
