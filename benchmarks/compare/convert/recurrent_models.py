"""Models with recurrent states in GGUF: their metadata, and their tensors as llama.cpp keeps them.

The names of tensors are those of gguf's own table; what is different is what the values become:
Mamba's A itself instead of its logarithm, zero-centred norms with their 1, gate and up of fused
projections apart, the matrices of all experts in one. Keys of config.json are read as they stand,
defaults of transformers are not known here. Needs gguf and numpy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np

# llama.cpp reads them in no other type: kernels of convolutions, and what the scans take.
FP32_TENSORS = ("conv1d.weight", "shortconv.conv.weight", "ssm_a", "ssm_d", "ssm_norm.weight")

Tensors = Iterator[tuple[str, np.ndarray]]


def write_mamba(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_head_count(0)
    writer.add_feed_forward_length(0)
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_inner_size(config["intermediate_size"])
    writer.add_ssm_state_size(config["state_size"])
    writer.add_ssm_time_step_rank(config["time_step_rank"])


def write_mamba2(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads = config["num_heads"]
    inner = heads * config["head_dim"]
    mamba = {**config, "intermediate_size": inner, "time_step_rank": heads}
    write_mamba(writer, mamba)
    writer.add_ssm_group_count(config["n_groups"])


def write_attention(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Of layers that have it; the others have no heads of keys and values."""
    heads = config["num_key_value_heads"]
    kinds = config["layer_types"]
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv([heads if kind == "full_attention" else 0 for kind in kinds])


def write_short_conv(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    write_attention(writer, config)
    writer.add_layer_norm_rms_eps(config["norm_eps"])
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    # Two thirds, rounded up, are what the model has of its intermediate size.
    multiple = config["block_multiple_of"]
    writer.add_feed_forward_length(
        -(-(2 * config["intermediate_size"] // 3) // multiple) * multiple
    )


def write_granite(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    write_attention(writer, config)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])
    writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_inner_size(config["mamba_n_heads"] * config["mamba_d_head"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    writer.add_ssm_group_count(config["mamba_n_groups"])


def write_nemotron(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    kinds = config["layers_block_type"]
    write_attention(writer, {**config, "layer_types": kinds})
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    experts = config["moe_intermediate_size"]
    writer.add_feed_forward_length([experts if kind == "moe" else 0 for kind in kinds])
    writer.add_expert_feed_forward_length(experts)
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    # llama.cpp asks for the first one, too, and uses the second.
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_inner_size(config["mamba_num_heads"] * config["mamba_head_dim"])
    writer.add_ssm_state_size(config["ssm_state_size"])
    writer.add_ssm_time_step_rank(config["mamba_num_heads"])
    writer.add_ssm_group_count(config["n_groups"])


def write_gated_delta(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads, head_dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    if heads != config["linear_num_key_heads"]:
        # llama.cpp wants the value heads in another order then.
        raise ValueError("write as many key heads as value heads of linear attention")
    rope = config["rope_parameters"]
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_full_attention_interval(config["full_attention_interval"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_inner_size(heads * head_dim)
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_group_count(config["linear_num_key_heads"])


@dataclass(frozen=True)
class Family:
    architecture: gguf.MODEL_ARCH
    write: Callable[[gguf.GGUFWriter, dict[str, Any]], None]
    has_centred_norms: bool = False  # around 0 in the checkpoint

    @property
    def name(self) -> str:
        return gguf.MODEL_ARCH_NAMES[self.architecture]

    def write_metadata(self, writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_vocab_size(config["vocab_size"])
        self.write(writer, config)

    def tensors(
        self, checkpoint: Tensors, config: dict[str, Any]
    ) -> Iterator[tuple[str, np.ndarray, int, int]]:
        """Those of a checkpoint, (name, values in fp32) of each, under the names of GGUF, with
        their number among as many as there are of one name: a matrix of each expert."""
        names = gguf.get_tensor_name_map(self.architecture, config["num_hidden_layers"])
        for fused_name, fused_values in checkpoint:
            for name, values in apart(fused_name, fused_values):
                plain_name = name.replace("dt_bias", "dt_proj.bias")
                plain_name = plain_name.replace("correction_bias", "correction.bias")
                expert = re.search(r"\.mixer\.experts\.(\d+)", name)
                if expert:
                    plain_name = plain_name.replace(expert[0], ".mlp.experts")
                    plain_name = plain_name.replace("backbone", "model")
                found = names.get_name(plain_name, (".weight", ".bias"))
                if found is None:
                    raise ValueError(f"gguf has no name for {name} in {self.name}")
                number, count = (int(expert[1]), config["n_routed_experts"]) if expert else (0, 1)
                yield found, self._as_kept(found, values, config), number, count

    def _as_kept(self, name: str, values: np.ndarray, config: dict[str, Any]) -> np.ndarray:
        if name.endswith(("conv1d.weight", "conv.weight")):
            return values.squeeze(1)
        if name.endswith("ssm_a"):
            values = -np.exp(values)
        if self.has_centred_norms and name.endswith("norm.weight"):
            return values if name.endswith("ssm_norm.weight") else values + 1
        # Of Mamba 2: a number for each head, and a norm for each group.
        if groups := config.get("n_groups") or config.get("mamba_n_groups"):
            if name.endswith(("ssm_a", "ssm_d")):
                return values[:, None]
            if name.endswith("ssm_norm.weight"):
                return values.reshape(groups, -1)
        return values


def apart(name: str, values: np.ndarray) -> Iterable[tuple[str, np.ndarray]]:
    """Gate and up of Granite's fused projections, which gguf's table does not name."""
    if not name.endswith("input_linear.weight"):
        return [(name, values)]
    block = f"blk.{name.split('.')[2]}"
    kind = "exps" if "block_sparse_moe" in name else "shexp"
    gate, up = np.split(values, 2, axis=-2)
    return [(f"{block}.ffn_gate_{kind}.weight", gate), (f"{block}.ffn_up_{kind}.weight", up)]


FAMILIES = {
    "granitemoehybrid": Family(gguf.MODEL_ARCH.GRANITE_HYBRID, write_granite),
    "lfm2": Family(gguf.MODEL_ARCH.LFM2, write_short_conv),
    "mamba": Family(gguf.MODEL_ARCH.MAMBA, write_mamba),
    "mamba2": Family(gguf.MODEL_ARCH.MAMBA2, write_mamba2),
    "nemotron_h": Family(gguf.MODEL_ARCH.NEMOTRON_H_MOE, write_nemotron),
    "qwen3_5_text": Family(gguf.MODEL_ARCH.QWEN35, write_gated_delta, has_centred_norms=True),
}
