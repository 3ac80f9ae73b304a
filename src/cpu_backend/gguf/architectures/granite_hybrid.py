"""Granite 4 with layers of Mamba 2."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import SOFTMAX
from cpu_backend.gguf.architectures.llama import interleaved
from cpu_backend.gguf.architectures.mamba import Mixer2, mixer2
from cpu_backend.gguf.architectures.tensors import ATTENTION, Tensor, named, plain

NORMS = named(
    {
        "attn_norm.weight": "input_layernorm.weight",
        "ffn_norm.weight": "post_attention_layernorm.weight",
    }
)
MLP = named(
    {
        "ffn_gate.weight+ffn_up.weight": "shared_mlp.input_linear.weight",
        "ffn_down.weight": "shared_mlp.output_linear.weight",
    }
)
SHARED = named(
    {
        "ffn_gate_shexp.weight+ffn_up_shexp.weight": "shared_mlp.input_linear.weight",
        "ffn_down_shexp.weight": "shared_mlp.output_linear.weight",
    }
)
EXPERTS = plain({"ffn_gate_inp.weight": "block_sparse_moe.gate.weight"}) | named(
    {
        "ffn_gate_exps.weight": "block_sparse_moe.experts.{}.gate_proj.weight",
        "ffn_up_exps.weight": "block_sparse_moe.experts.{}.up_proj.weight",
        "ffn_down_exps.weight": "block_sparse_moe.experts.{}.down_proj.weight",
    }
)


class GraniteHybrid(Mixer2):
    """Granite 4, dense or with experts and a shared one in every layer."""

    class_name = "GraniteMoeHybridForCausalLM"
    model_type = "granitemoehybrid"

    def config(self) -> dict[str, Any]:
        self.check_router(SOFTMAX, normed=True)
        config, mixer = super().config(), self.mixer()
        hidden = config["hidden_size"]
        if mixer["inner"] % hidden:
            raise self.refuse(f"has mixers of {mixer['inner']} channels for {hidden}")
        if config["head_dim"] * config["num_attention_heads"] != hidden:
            raise self.refuse("has heads that are not as wide as its layers")
        attends = [self.attends(layer) for layer in range(self.num_layers)]
        rotates = self.flag("rope.scaling.finetuned", True)
        return config | {
            "attention_bias": False,
            "attention_multiplier": self.scale("attention_scale", config["head_dim"] ** -0.5),
            "embedding_multiplier": self.scale("embedding_scale"),
            "layer_types": ["full_attention" if a else "linear_attention" for a in attends],
            "logits_scaling": self.scale("logit_scale"),
            "mamba_conv_bias": self.mixes("ssm_conv1d.bias"),
            "mamba_d_conv": self.size("ssm.conv_kernel"),
            "mamba_d_head": mixer["ssm_head"],
            "mamba_d_state": mixer["state"],
            "mamba_expand": mixer["inner"] // hidden,
            "mamba_n_groups": mixer["ssm_groups"],
            "mamba_n_heads": mixer["ssm_heads"],
            "mamba_proj_bias": False,
            "num_experts_per_tok": self.size("expert_used_count", 0, least=0),
            "num_local_experts": self.size("expert_count", 0, least=0),
            "position_embedding_type": "rope" if rotates else "nope",
            "residual_multiplier": self.scale("residual_scale"),
            "shared_intermediate_size": self.shared(),
        }

    def scale(self, name: str, default: float = 1.0) -> float:
        """A factor; 0 stands for none."""
        key = name.replace("attention_", "attention.")
        value = self.file.get(f"{self.name}.{key}", (int, float), 0.0)
        return self.number(key) if value else default

    def shared(self) -> int:
        """The width of the shared expert, or of what is in its place where there are no others."""
        if not self.size("expert_count", 0, least=0):
            return self.size("feed_forward_length")
        return self.size("expert_shared_feed_forward_length", 0, least=0)

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        sizes = super().sizes(layer, config)
        return sizes | {"expert_ffn": sizes["ffn"]}

    def layer(self, number: int) -> dict[str, Tensor]:
        mixer = interleaved(ATTENTION) if self.attends(number) else mixer2("mamba.")
        if not self.size("expert_count", 0, least=0):
            return mixer | NORMS | MLP
        return mixer | NORMS | EXPERTS | (SHARED if self.shared() else {})

    def checkpoint_name(self, module: str) -> str:
        return module.replace(".mixer.", ".mamba.")


KNOWN = {"granitehybrid": GraniteHybrid}
