"""Nemotron, and Nemotron-H with layers of Mamba 2."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import SIGMOID, Architecture
from cpu_backend.gguf.architectures.mamba import Mixer2, mixer2
from cpu_backend.gguf.architectures.tensors import Tensor, centred, named, plain

EXPERTS = plain({"ffn_gate_inp.weight": "mixer.gate.weight"}) | named(
    {
        "exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
        "ffn_down_shexp.weight": "mixer.shared_experts.down_proj.weight",
        "ffn_up_shexp.weight": "mixer.shared_experts.up_proj.weight",
    }
)
IN_LATENT = {
    "ffn_up_exps.weight": Tensor(
        "mixer.experts.{}.up_proj.weight", ("experts", "expert_ffn", "latent")
    ),
    "ffn_down_exps.weight": Tensor(
        "mixer.experts.{}.down_proj.weight", ("experts", "latent", "expert_ffn")
    ),
}
LATENTS = {
    "ffn_latent_down.weight": Tensor("mixer.fc1_latent_proj.weight", ("latent", "hidden")),
    "ffn_latent_up.weight": Tensor("mixer.fc2_latent_proj.weight", ("hidden", "latent")),
}


class Nemotron(Architecture):
    """Nemotron and Minitron: norms around 0 with biases, a square as activation."""

    class_name = "NemotronForCausalLM"
    model_type = "nemotron"
    activation = "relu2"
    epsilon = "layer_norm_epsilon"
    partial_rotary = True

    def config(self) -> dict[str, Any]:
        config = super().config()
        return (
            {"partial_rotary_factor": 1.0}
            | config
            | {
                "attention_bias": False,
                "mlp_bias": False,
                "norm_eps": config["rms_norm_eps"],
            }
        )

    def outer(self) -> dict[str, Tensor]:
        return centred(super().outer()) | named({"output_norm.bias": "model.norm.bias"})

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = super().layer(number)
        del tensors["ffn_gate.weight"]
        return centred(tensors) | named(
            {
                "attn_norm.bias": "input_layernorm.bias",
                "ffn_norm.bias": "post_attention_layernorm.bias",
            }
        )


class NemotronH(Mixer2):
    """Nemotron-H: each layer one mixer, attention without positions, or a feed-forward network."""

    class_name = "NemotronHForCausalLM"
    model_type = "nemotron_h"
    activation = "relu2"
    epsilon = "layer_norm_epsilon"

    def config(self) -> dict[str, Any]:
        if self.has("attention.layer_norm_rms_epsilon"):
            self.epsilon = "layer_norm_rms_epsilon"
        config, mixer = super().config(), self.mixer()
        kinds = [self.kind(layer) for layer in range(self.num_layers)]
        return config | {
            "conv_kernel": self.size("ssm.conv_kernel"),
            "layer_norm_epsilon": config["rms_norm_eps"],
            "layers_block_type": kinds,
            "mamba_head_dim": mixer["ssm_head"],
            "mamba_hidden_act": "silu",
            "mamba_num_heads": mixer["ssm_heads"],
            "mamba_proj_bias": False,
            "mlp_bias": False,
            "mlp_hidden_act": self.activation,
            "n_groups": mixer["ssm_groups"],
            "sliding_window": None,
            "ssm_state_size": mixer["state"],
            "use_bias": False,
            "use_conv_bias": self.mixes("ssm_conv1d.bias"),
        }

    def kind(self, layer: int) -> str:
        """What a layer is."""
        if self.attends(layer):
            return "full_attention"
        return "mlp" if self.per_layer("feed_forward_length")[layer] else "linear_attention"

    def intermediate_size(self) -> int:
        found = {n for n in self.per_layer("feed_forward_length") if n}
        if len(found) > 1:
            raise self.refuse("has feed-forward networks of different widths")
        return found.pop() if found else 1

    def rotary(self) -> dict[str, Any]:
        if self.flag("rope.scaling.finetuned", False):
            raise self.refuse("has positions in its attention")
        return self.not_rotary()

    def outer(self) -> dict[str, Tensor]:
        return super().outer() | named({"output_norm.weight": "model.norm_f.weight"})

    def layer(self, number: int) -> dict[str, Tensor]:
        return named({"attn_norm.weight": "norm.weight"}) | self.part(self.kind(number))

    def part(self, kind: str) -> dict[str, Tensor]:
        """The tensors of a layer of a kind but for its norm."""
        if kind == "linear_attention":
            return mixer2("mixer.")
        if kind == "full_attention":
            names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "output": "o_proj"}
            return named({f"attn_{n}.weight": f"mixer.{p}.weight" for n, p in names.items()})
        return named(
            {"ffn_up.weight": "mixer.up_proj.weight", "ffn_down.weight": "mixer.down_proj.weight"}
        )


class NemotronHMoe(NemotronH):
    """Nemotron-H with experts that have no gate, of all channels or of fewer."""

    def config(self) -> dict[str, Any]:
        self.check_router(SIGMOID, normed=None, scaled=True)
        shared = self.size("expert_shared_count", 1, least=0)
        width = self.size("expert_shared_feed_forward_length")
        if shared != 1:
            raise self.refuse(f"has {shared} shared experts")
        return (
            super().config()
            | self.experts("n_routed_experts")
            | {
                "moe_latent_size": self.size("moe_latent_size", 0, least=0) or None,
                "moe_shared_expert_intermediate_size": width,
                "n_group": 1,
                "n_shared_experts": shared,
                "norm_topk_prob": self.flag("expert_weights_norm", False),
                "routed_scaling_factor": self.weights_scale(),
                "topk_group": 1,
            }
        )

    def expert_ffn(self) -> int:
        key = "expert_feed_forward_length"
        if not self.has(key):
            return self.intermediate_size() // self.size("expert_used_count")
        return self.size(key)

    def kind(self, layer: int) -> str:
        kind = super().kind(layer)
        return "moe" if kind == "mlp" else kind

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        sizes = super().sizes(layer, config)
        return sizes | {"latent": config["moe_latent_size"] or sizes["hidden"]}

    def part(self, kind: str) -> dict[str, Tensor]:
        if kind != "moe":
            return super().part(kind)
        latents = LATENTS if self.size("moe_latent_size", 0, least=0) else {}
        return EXPERTS | IN_LATENT | latents


KNOWN = {"nemotron": Nemotron, "nemotron_h": NemotronH, "nemotron_h_moe": NemotronHMoe}
