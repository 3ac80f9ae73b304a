"""What has norms with a bias, around the mean: StableLM, StarCoder 1 and 2, Orion, Jais 2, Falcon,
GPT-NeoX, GPT-2, BLOOM."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from cpu_backend.gguf.architectures.base import Architecture
from cpu_backend.gguf.architectures.tensors import (
    QKV_BIASES,
    Tensor,
    named,
    optional,
    plain,
    reordered,
)

NORMS = ("output_norm", "attn_norm", "attn_norm_2", "ffn_norm", "token_embd_norm")


def with_biases(tensors: dict[str, Tensor], *kinds: str) -> dict[str, Tensor]:
    """With those of the norms, and of the matrices ``kinds``."""
    biases = {
        name.removesuffix("weight") + "bias": replace(
            tensor, name=tensor.name.removesuffix("weight") + "bias", plain=False
        )
        for name, tensor in tensors.items()
        if name.removesuffix(".weight") in (*NORMS, *kinds)
    }
    return tensors | biases


def by_groups(rows: Any, heads: int, groups: int) -> Any:
    """rows [(heads + 2 groups) * head, any]: of the file, all queries before all keys before all
    values; in a checkpoint they are so for each group of heads."""
    head = rows.shape[0] // (heads + 2 * groups)
    queries, keys, values = rows.split([heads * head, groups * head, groups * head])
    mixed = rows.new_empty(groups, heads // groups + 2, head, rows.shape[1])
    mixed[:, :-2] = queries.view(groups, heads // groups, head, -1)
    mixed[:, -2] = keys.view(groups, head, -1)
    mixed[:, -1] = values.view(groups, head, -1)
    return mixed.view(rows.shape)


def transposed(rows: Any) -> Any:
    """Of which the host takes the transpose when it loads it."""
    return rows.t()


class LayerNorms(Architecture):
    """Norms with a bias; ``epsilon_name``: what config.json calls the epsilon."""

    epsilon = "layer_norm_epsilon"
    epsilon_name = "layer_norm_eps"

    def config(self) -> dict[str, Any]:
        config = super().config()
        config[self.epsilon_name] = config.pop("rms_norm_eps")
        return config

    def outer(self) -> dict[str, Tensor]:
        return with_biases(super().outer())

    def layer(self, number: int) -> dict[str, Tensor]:
        return with_biases(super().layer(number))


class StableLm(LayerNorms):
    """StableLM 3B and 2 1.6B; that with 12B has other layers."""

    class_name = "StableLmForCausalLM"
    model_type = "stablelm"
    partial_rotary = True

    def config(self) -> dict[str, Any]:
        if self.flag("use_parallel_residual", False) or not self.present("ffn_norm.weight"):
            raise self.refuse("is a StableLM whose attention and feed-forward layer are parallel")
        if self.present("attn_q_norm.weight"):
            raise self.refuse("is a StableLM with norms of heads")
        config = {"partial_rotary_factor": 1.0} | super().config()
        return config | {
            "use_qkv_bias": self.present("attn_q.bias"),
            "use_parallel_residual": False,
            "qk_layernorm": False,
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        return super().layer(number) | optional(QKV_BIASES)


class Orion(LayerNorms):
    """Orion: Llama with other norms; transformers has no config class of this name."""

    class_name = "OrionForCausalLM"
    epsilon_name = "rms_norm_eps"


class Jais2(LayerNorms):
    """Jais 2: biases everywhere, ReLU squared without a gate."""

    class_name = "Jais2ForCausalLM"
    model_type = "jais2"
    activation = "relu2"

    def config(self) -> dict[str, Any]:
        return super().config() | {"attention_bias": True, "mlp_bias": True}

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = super().layer(number)
        del tensors["ffn_gate.weight"]
        kinds = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
        return with_biases(tensors, *kinds)


class Starcoder2(LayerNorms):
    """StarCoder 2: biases everywhere, no gate."""

    class_name = "Starcoder2ForCausalLM"
    model_type = "starcoder2"
    activation = "gelu_pytorch_tanh"
    epsilon_name = "norm_epsilon"

    def config(self) -> dict[str, Any]:
        biased = self.present("attn_q.bias") or self.present("attn_qkv.bias")
        return super().config() | {
            "use_bias": biased,
            # That of all models of this name; no file says it.
            "sliding_window": self.size("attention.sliding_window", 4096),
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = super().layer(number) | named(
            {"ffn_up.weight": "mlp.c_fc.weight", "ffn_down.weight": "mlp.c_proj.weight"}
        )
        del tensors["ffn_gate.weight"]
        kinds = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
        biased = self.present("attn_q.bias") or self.present("attn_qkv.bias")
        return with_biases(tensors, *kinds) if biased else tensors


class Fused(LayerNorms):
    """One matrix of queries, keys and values, no gate.

    table, last_norm, layers, attention: their names.  biased: the matrices have biases.
    rotated: positions turn queries and keys.
    """

    table = ""
    last_norm = ""
    layers = ""
    attention = "self_attention"
    biased = True
    rotated = True

    def config(self) -> dict[str, Any]:
        config = super().config()
        hidden = config["hidden_size"]
        if config.pop("head_dim") * config["num_attention_heads"] != hidden:
            raise self.refuse("has heads that do not make up the width of the model")
        return config

    def rotary(self) -> dict[str, Any]:
        return super().rotary() if self.rotated else {}

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        config = config | {"head_dim": self.head_dim}
        return super().sizes(layer, config) | {"context": self.size("context_length")}

    def outer(self) -> dict[str, Tensor]:
        return with_biases(
            named(
                {
                    "token_embd.weight": self.table,
                    "output_norm.weight": self.last_norm,
                    "output.weight": "lm_head.weight",
                }
            )
        )

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = named(self.names()) | self.moved()
        matrices = [name.removesuffix(".weight") for name in tensors]
        return with_biases(tensors, *(matrices if self.biased else ()))

    def names(self) -> dict[str, str]:
        """Of a layer's tensors; those of GPT-NeoX."""
        return {
            "attn_norm.weight": "input_layernorm.weight",
            "attn_output.weight": f"{self.attention}.dense.weight",
            "ffn_norm.weight": "post_attention_layernorm.weight",
            "ffn_up.weight": "mlp.dense_h_to_4h.weight",
            "ffn_down.weight": "mlp.dense_4h_to_h.weight",
        }

    def moved(self) -> dict[str, Tensor]:
        """Those that the host loads in another order of rows."""
        heads = self.size("attention.head_count")
        order = functools.partial(by_groups, heads=heads, groups=self.groups)
        return reordered({"attn_qkv.weight": f"{self.attention}.query_key_value.weight"}, order)

    @property
    def groups(self) -> int:
        """Of heads that share keys."""
        return self.size("attention.head_count_kv", self.size("attention.head_count"))

    def prefix(self, number: int) -> str:
        return f"{self.layers}.{number}."


class Falcon(Fused):
    """Falcon 7B, 40B and 2 11B: attention beside what follows it, with one norm or two."""

    class_name = "FalconForCausalLM"
    model_type = "falcon"
    activation = "gelu"
    epsilon_name = "layer_norm_epsilon"
    table = "transformer.word_embeddings.weight"
    last_norm = "transformer.ln_f.weight"
    layers = "transformer.h"
    biased = False

    def config(self) -> dict[str, Any]:
        config = super().config()
        groups = config["num_key_value_heads"]
        if config["intermediate_size"] != 4 * config["hidden_size"]:
            raise self.refuse("is a Falcon of another width than four times that of the model")
        return config | {
            "alibi": False,
            "bias": False,
            "multi_query": groups == 1,
            "new_decoder_architecture": groups > 1,
            "num_kv_heads": groups,
            "num_ln_in_parallel_attn": 2 if self.two_norms else 1,
            "parallel_attn": True,
        }

    @property
    def two_norms(self) -> bool:
        """Whether attention has a norm of its own."""
        return self.present("attn_norm_2.weight")

    def names(self) -> dict[str, str]:
        names = super().names()
        del names["ffn_norm.weight"]
        if self.two_norms:
            names |= {"attn_norm.weight": "ln_mlp.weight", "attn_norm_2.weight": "ln_attn.weight"}
        return names


class GptNeoX(Fused):
    """Pythia, GPT-NeoX, RedPajama, Dolly."""

    class_name = "GPTNeoXForCausalLM"
    model_type = "gpt_neox"
    activation = "gelu"
    partial_rotary = True
    table = "model.embed_in.weight"
    last_norm = "model.final_layer_norm.weight"
    layers = "model.layers"
    attention = "attention"

    def config(self) -> dict[str, Any]:
        return super().config() | {
            "attention_bias": True,
            "use_parallel_residual": self.flag("use_parallel_residual"),
        }

    def rotary(self) -> dict[str, Any]:
        config = super().rotary()
        theta, part = config.pop("rope_theta"), config.pop("partial_rotary_factor", 1.0)
        return config | {"rotary_emb_base": theta, "rotary_pct": part}


class Bloom(Fused):
    """BLOOM: scores fall with distance, a norm after the table."""

    class_name = "BloomForCausalLM"
    model_type = "bloom"
    activation = "gelu_pytorch_tanh"
    epsilon_name = "layer_norm_epsilon"
    has_head = False
    rotated = False
    table = "transformer.word_embeddings.weight"
    last_norm = "transformer.ln_f.weight"
    layers = "transformer.h"

    def config(self) -> dict[str, Any]:
        # Old files have the table twice.
        return super().config() | {"tie_word_embeddings": True}

    def outer(self) -> dict[str, Tensor]:
        norm = named({"token_embd_norm.weight": "transformer.word_embeddings_layernorm.weight"})
        return super().outer() | with_biases(norm)

    def ignored(self, name: str) -> bool:
        return name == "output.weight" or super().ignored(name)


class StarCoder(Fused):
    """StarCoder 1 and what else is a GPT with one head of keys: learned positions."""

    class_name = "GPTBigCodeForCausalLM"
    model_type = "gpt_bigcode"
    activation = "gelu_pytorch_tanh"
    epsilon_name = "layer_norm_epsilon"
    rotated = False
    root = "model"
    table = "model.wte.weight"
    last_norm = "model.ln_f.weight"
    layers = "model.h"

    def config(self) -> dict[str, Any]:
        config = super().config()
        config |= {
            "activation_function": config.pop("hidden_act"),
            "n_inner": config["intermediate_size"],
        }
        return config | self.sharing()

    def names(self) -> dict[str, str]:
        return {
            "attn_norm.weight": "ln_1.weight",
            "attn_qkv.weight": "attn.c_attn.weight",
            "attn_output.weight": "attn.c_proj.weight",
            "ffn_norm.weight": "ln_2.weight",
            "ffn_up.weight": "mlp.c_fc.weight",
            "ffn_down.weight": "mlp.c_proj.weight",
        }

    def moved(self) -> dict[str, Tensor]:
        return {}

    def sharing(self) -> dict[str, Any]:
        """What config.json says of heads that share keys."""
        if self.groups != 1:
            raise self.refuse("is a StarCoder with more than one head of keys")
        return {"multi_query": True}

    def outer(self) -> dict[str, Tensor]:
        positions = plain({"position_embd.weight": f"{self.root}.wpe.weight"})
        shape = ("context", "hidden")
        return super().outer() | {name: replace(t, shape=shape) for name, t in positions.items()}


class Gpt2(StarCoder):
    """GPT-2."""

    class_name = "GPT2LMHeadModel"
    model_type = "gpt2"
    activation = "gelu_new"
    root = "transformer"
    table = "transformer.wte.weight"
    last_norm = "transformer.ln_f.weight"
    layers = "transformer.h"

    def sharing(self) -> dict[str, Any]:
        if self.groups != self.size("attention.head_count"):
            raise self.refuse("is a GPT-2 whose heads share keys")
        return {}

    def layer(self, number: int) -> dict[str, Tensor]:
        return {
            name: replace(tensor, loaded=transposed)
            if name.endswith("weight") and "norm" not in name
            else tensor
            for name, tensor in super().layer(number).items()
        }


KNOWN = {
    "stablelm": StableLm,
    "orion": Orion,
    "jais2": Jais2,
    "starcoder2": Starcoder2,
    "falcon": Falcon,
    "gptneox": GptNeoX,
    "bloom": Bloom,
    "starcoder": StarCoder,
    "gpt2": Gpt2,
}
