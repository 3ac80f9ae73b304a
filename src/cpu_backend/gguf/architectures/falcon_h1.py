"""Falcon-H1: attention and a mixer of Mamba 2 side by side in each layer."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.mamba import HEAD, Mixer2, mixer2
from cpu_backend.gguf.architectures.tensors import ATTENTION, Tensor, named

FEED_FORWARD = named(
    {
        "ffn_gate.weight": "feed_forward.gate_proj.weight",
        "ffn_up.weight": "feed_forward.up_proj.weight",
        "ffn_down.weight": "feed_forward.down_proj.weight",
    }
)
PRE_NORM = "pre_ff_layernorm.weight"
ONE = ("attention_in", "attention_out", "embedding", "key", "lm_head", "ssm_in", "ssm_out")


class FalconH1(Mixer2):
    """Falcon-H1, whose many factors are in the file's weights."""

    class_name = "FalconH1ForCausalLM"
    model_type = "falcon_h1"
    has_head = False

    def config(self) -> dict[str, Any]:
        config, mixer = super().config(), self.mixer()
        return (
            config
            | {f"{name}_multiplier": 1.0 for name in ONE}
            | {
                "attention_bias": False,
                "mamba_conv_bias": self.present("ssm_conv1d.bias"),
                "mamba_d_conv": self.size("ssm.conv_kernel"),
                "mamba_d_head": mixer["ssm_head"],
                "mamba_d_ssm": mixer["inner"],
                "mamba_d_state": mixer["state"],
                "mamba_n_groups": mixer["ssm_groups"],
                "mamba_n_heads": mixer["ssm_heads"],
                "mamba_norm_before_gate": False,
                "mamba_proj_bias": False,
                "mamba_rms_norm": self.present("ssm_norm.weight"),
                "mlp_bias": False,
                "mlp_multipliers": [1.0] * 2,
                "projectors_bias": False,
                "ssm_multipliers": [1.0] * 5,
            }
        )

    def outer(self) -> dict[str, Tensor]:
        norm = named({"output_norm.weight": "model.final_layernorm.weight"})
        return super().outer() | HEAD | norm

    def layer(self, number: int) -> dict[str, Tensor]:
        # llama.cpp wants this name without an ending.
        norm = "ffn_norm" if self.present("ffn_norm", number) else "ffn_norm.weight"
        norms = named({"attn_norm.weight": "input_layernorm.weight", norm: PRE_NORM})
        return ATTENTION | norms | mixer2("mamba.") | FEED_FORWARD

    def checkpoint_name(self, module: str) -> str:
        parts = module.split(".")  # model.layers.2.qkv_proj, model.38.mixer.in_proj
        if parts[2] == "mixer":
            layer = int(parts[1]) - self.num_layers
            return ".".join(["model.layers", str(layer), "mamba", *parts[3:]])
        if len(parts) == 4:
            return ".".join([*parts[:3], "self_attn", parts[3]])
        return module


KNOWN = {"falcon-h1": FalconH1}
