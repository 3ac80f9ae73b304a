"""Mamba 1 and 2, Jamba, and what hybrids with such layers share."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import SOFTMAX, Architecture
from cpu_backend.gguf.architectures.tensors import ATTENTION, Tensor, named, plain

# The host does not quantize it.
HEAD = plain({"output.weight": "lm_head.weight"})


def logarithm(rates: Any) -> Any:
    """Of rates of decay the checkpoint has the logarithm, the file what they are: below 0."""
    return (-rates).log()


def one_row(weight: Any) -> Any:
    """Of norms the checkpoint has no groups."""
    return weight.flatten()


def mixer2(prefix: str) -> dict[str, Tensor]:
    """The tensors of a mixer of Mamba 2; ``prefix``: of their names in a checkpoint."""
    convolved = ("convolved", 1, "kernel")
    return {
        "ssm_in.weight": Tensor(prefix + "in_proj.weight", ("projections", "hidden")),
        "ssm_conv1d.weight": Tensor(prefix + "conv1d.weight", convolved, plain=True),
        "ssm_conv1d.bias": Tensor(prefix + "conv1d.bias", ("convolved",), optional=True),
        "ssm_dt.bias": Tensor(prefix + "dt_bias", ("ssm_heads",)),
        "ssm_a": Tensor(prefix + "A_log", ("ssm_heads",), values=logarithm),
        "ssm_d": Tensor(prefix + "D", ("ssm_heads",)),
        "ssm_norm.weight": Tensor(
            prefix + "norm.weight", ("ssm_groups", "ssm_group"), values=one_row, optional=True
        ),
        "ssm_out.weight": Tensor(prefix + "out_proj.weight", ("hidden", "inner")),
    }


class Mixer2(Architecture):
    """What has layers of Mamba 2."""

    def mixer(self) -> dict[str, int]:
        """The sizes of the mixers."""
        inner, heads = self.size("ssm.inner_size"), self.size("ssm.time_step_rank")
        groups = self.size("ssm.group_count")
        if inner % heads or heads % groups:
            raise self.file.error(
                f"has {heads} heads of {inner} channels in {groups} groups in its mixers"
            )
        state = self.size("ssm.state_size")
        return {
            "inner": inner,
            "ssm_heads": heads,
            "ssm_head": inner // heads,
            "ssm_groups": groups,
            "ssm_group": inner // groups,
            "state": state,
            "convolved": inner + 2 * groups * state,
            "projections": 2 * inner + 2 * groups * state + heads,
        }

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        return super().sizes(layer, config) | self.mixer()

    def mixes(self, part: str) -> bool:
        """Whether mixers have the tensor ``part``."""
        return any(self.present(part, layer) for layer in range(self.num_layers))


class Mamba(Architecture):
    """Mamba and Falcon Mamba."""

    class_name = "MambaForCausalLM"
    model_type = "mamba"
    has_head = False

    def config(self) -> dict[str, Any]:
        eps = self.number(f"attention.{self.epsilon}")
        config = self.backbone() | {
            "intermediate_size": self.size("ssm.inner_size"),
            "time_step_rank": self.size("ssm.time_step_rank"),
        }
        if not self.flag("ssm.dt_b_c_rms", False):
            return config
        falcon = {"architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba"}
        return config | falcon | {"mixer_rms_eps": eps}

    def backbone(self) -> dict[str, Any]:
        """What Mamba 1 and 2 share."""
        for key in ("attention.head_count", "feed_forward_length"):
            if self.size(key, 0, least=0):
                raise self.refuse(f"has other layers than Mamba ('{key}')")
        return {
            "architectures": [self.class_name],
            "model_type": self.model_type,
            "conv_kernel": self.size("ssm.conv_kernel"),
            "hidden_act": self.activation,
            "hidden_size": self.size("embedding_length"),
            "layer_norm_epsilon": self.number(f"attention.{self.epsilon}"),
            "max_position_embeddings": self.size("context_length"),
            "num_hidden_layers": self.num_layers,
            "state_size": self.size("ssm.state_size"),
            "tie_word_embeddings": "output.weight" not in self.file.tensors,
            "use_bias": False,
            "use_conv_bias": self.present("ssm_conv1d.bias"),
            "vocab_size": self.vocab_size,
        }

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        del layer
        inner, rank = self.size("ssm.inner_size"), self.size("ssm.time_step_rank")
        return {
            "vocabulary": config["vocab_size"],
            "hidden": config["hidden_size"],
            "kernel": config["conv_kernel"],
            **mixer_sizes(inner, rank, config["state_size"]),
        }

    def outer(self) -> dict[str, Tensor]:
        return (
            named(
                {
                    "token_embd.weight": "backbone.embeddings.weight",
                    "output_norm.weight": "backbone.norm_f.weight",
                }
            )
            | HEAD
        )

    def layer(self, number: int) -> dict[str, Tensor]:
        return named({"attn_norm.weight": "norm.weight"}) | mixer1("mixer.")

    def prefix(self, number: int) -> str:
        return f"backbone.layers.{number}."


def mixer_sizes(inner: int, rank: int, state: int) -> dict[str, int]:
    """Of a mixer of Mamba 1."""
    return {
        "inner": inner,
        "twice_inner": 2 * inner,
        "rank": rank,
        "state": state,
        "selection": rank + 2 * state,
    }


def mixer1(prefix: str) -> dict[str, Tensor]:
    """The tensors of a mixer of Mamba 1, whose linear layers the host does not quantize."""
    return {
        "ssm_in.weight": Tensor(prefix + "in_proj.weight", ("twice_inner", "hidden"), plain=True),
        "ssm_conv1d.weight": Tensor(prefix + "conv1d.weight", ("inner", 1, "kernel"), plain=True),
        "ssm_conv1d.bias": Tensor(prefix + "conv1d.bias", ("inner",), optional=True),
        "ssm_x.weight": Tensor(prefix + "x_proj.weight", ("selection", "inner"), plain=True),
        "ssm_dt.weight": Tensor(prefix + "dt_proj.weight", ("inner", "rank"), plain=True),
        "ssm_dt.bias": Tensor(prefix + "dt_proj.bias", ("inner",)),
        "ssm_a": Tensor(prefix + "A_log", ("inner", "state"), values=logarithm),
        "ssm_d": Tensor(prefix + "D", ("inner",)),
        "ssm_out.weight": Tensor(prefix + "out_proj.weight", ("hidden", "inner"), plain=True),
    }


class Mamba2(Mixer2, Mamba):
    """Mamba 2."""

    class_name = "Mamba2ForCausalLM"
    model_type = "mamba2"

    def config(self) -> dict[str, Any]:
        mixer = self.mixer()
        return self.backbone() | {
            "expand": max(mixer["inner"] // self.size("embedding_length"), 1),
            "head_dim": mixer["ssm_head"],
            "intermediate_size": mixer["inner"],
            "n_groups": mixer["ssm_groups"],
            "num_heads": mixer["ssm_heads"],
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        return named({"attn_norm.weight": "norm.weight"}) | mixer2("mixer.")


class Jamba(Architecture):
    """Jamba: layers of Mamba 1 and of attention without positions, some with experts."""

    class_name = "JambaForCausalLM"
    model_type = "jamba"
    has_head = False

    def config(self) -> dict[str, Any]:
        self.check_router(SOFTMAX, normed=False)
        config = super().config()
        hidden, inner = config["hidden_size"], self.size("ssm.inner_size")
        if inner % hidden:
            raise self.refuse(f"has mixers of {inner} channels for {hidden}")
        layers = range(self.num_layers)
        return (
            config
            | self.every("attn_layer", [self.attends(layer) for layer in layers])
            | self.every("expert_layer", [self.routes(layer) for layer in layers])
            | {
                "mamba_conv_bias": any(self.present("ssm_conv1d.bias", n) for n in layers),
                "mamba_d_conv": self.size("ssm.conv_kernel"),
                "mamba_d_state": self.size("ssm.state_size"),
                "mamba_dt_rank": self.size("ssm.time_step_rank"),
                "mamba_expand": inner // hidden,
                "mamba_proj_bias": False,
                "moe_intermediate_size": config["intermediate_size"],
                "num_experts": self.size("expert_count", 0, least=0) or 1,
                "num_experts_per_tok": self.size("expert_used_count", 0, least=0) or 1,
            }
        )

    def routes(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return self.present("ffn_gate_inp.weight", layer)

    def every(self, name: str, chosen: list[bool]) -> dict[str, int]:
        """Period and offset of the chosen layers."""
        for period in range(1, len(chosen) + 2):
            for offset in range(period):
                if chosen == [layer % period == offset for layer in range(len(chosen))]:
                    return {f"{name}_period": period, f"{name}_offset": offset}
        raise self.refuse(f"has layers that do not recur ('{name}')")

    def rotary(self) -> dict[str, Any]:
        return self.not_rotary()

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        inner = config["mamba_expand"] * config["hidden_size"]
        mixer = mixer_sizes(inner, config["mamba_dt_rank"], config["mamba_d_state"])
        return super().sizes(layer, config) | mixer

    def outer(self) -> dict[str, Tensor]:
        norm = named({"output_norm.weight": "model.final_layernorm.weight"})
        return super().outer() | HEAD | norm

    def layer(self, number: int) -> dict[str, Tensor]:
        norms = named(
            {
                "attn_norm.weight": "input_layernorm.weight",
                "ffn_norm.weight": "pre_ff_layernorm.weight",
            }
        )
        projections = ("gate", "up", "down")
        if self.routes(number):
            feed = plain({"ffn_gate_inp.weight": "feed_forward.router.weight"}) | named(
                {
                    f"ffn_{name}_exps.weight": f"feed_forward.experts.{{}}.{name}_proj.weight"
                    for name in projections
                }
            )
        else:
            feed = named(
                {f"ffn_{name}.weight": f"feed_forward.{name}_proj.weight" for name in projections}
            )
        if self.attends(number):
            return ATTENTION | norms | feed
        selection = {
            "ssm_dt_norm.weight": Tensor("mamba.dt_layernorm.weight", ("rank",)),
            "ssm_b_norm.weight": Tensor("mamba.b_layernorm.weight", ("state",)),
            "ssm_c_norm.weight": Tensor("mamba.c_layernorm.weight", ("state",)),
        }
        return mixer1("mamba.") | selection | norms | feed

    def checkpoint_name(self, module: str) -> str:
        path, _, last = module.rpartition(".")
        if path.count(".") == 2 and last.endswith("_proj"):
            return f"{path}.self_attn.{last}"
        return module


KNOWN = {"jamba": Jamba, "mamba": Mamba, "mamba2": Mamba2}
