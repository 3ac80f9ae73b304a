"""Gemma 1 to 4: norms around 0, or around 1 from Gemma 3n on; tied tables."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np

from cpu_backend.gguf.architectures.base import ROPE_FACTORS, Architecture, layer_types
from cpu_backend.gguf.architectures.tensors import (
    ATTENTION,
    HEAD_NORMS,
    MLP,
    OUTER,
    Tensor,
    centred,
    named,
    plain,
)

FOUR_NORMS = named(
    {
        "post_attention_norm.weight": "post_attention_layernorm.weight",
        "ffn_norm.weight": "pre_feedforward_layernorm.weight",
        "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    }
)
# What each layer is given of a token beside its hidden states.
PER_LAYER_OUTER = {
    "per_layer_token_embd.weight": Tensor(
        "model.embed_tokens_per_layer.weight", ("own_vocabulary", "all_own"), plain=True
    ),
    "per_layer_model_proj.weight": Tensor(
        "model.per_layer_model_projection.weight", ("all_own", "hidden")
    ),
    "per_layer_proj_norm.weight": Tensor("model.per_layer_projection_norm.weight", ("own",)),
}
PER_LAYER = {
    "inp_gate.weight": Tensor("per_layer_input_gate.weight", ("own", "hidden")),
    "proj.weight": Tensor("per_layer_projection.weight", ("hidden", "own")),
    "post_norm.weight": Tensor("post_per_layer_input_norm.weight"),
}
# Gemma 3n's streams of hidden states, of which no tool quantizes the matrices.
STREAMS_OUTER = {
    "altup_proj.weight": Tensor(
        "model.self_decoder.altup_projections.{}.weight", ("others", "hidden", "hidden"), plain=True
    ),
    "altup_unembd_proj.weight": Tensor(
        "model.altup_unembed_projections.{}.weight", ("others", "hidden", "hidden"), plain=True
    ),
}
STREAMS = {
    "altup_correct_scale.weight": Tensor("altup.correct_output_scale"),
    "altup_correct_coef.weight": Tensor(
        "altup.correction_coefs.weight", ("streams", "streams"), plain=True
    ),
    "altup_predict_coef.weight": Tensor(
        "altup.prediction_coefs.weight", ("pairs", "streams"), plain=True
    ),
    "altup_router.weight": Tensor(
        "altup.modality_router.weight", ("streams", "hidden"), plain=True
    ),
    "altup_router_norm.weight": Tensor("altup.router_norm.weight"),
    "laurel_l.weight": Tensor("laurel.linear_left.weight", ("rank", "hidden"), plain=True),
    "laurel_r.weight": Tensor("laurel.linear_right.weight", ("hidden", "rank"), plain=True),
    "laurel_post_norm.weight": Tensor("laurel.post_laurel_norm.weight"),
}
GEMMA4_EXPERTS = {
    **plain({"ffn_gate_inp.weight": "router.proj.weight"}),
    "ffn_gate_inp.scale": Tensor("router.scale", ("hidden",)),
    "ffn_down_exps.scale": Tensor("router.per_expert_scale", ("experts",)),
    **named(
        {
            "ffn_gate_exps.weight": "experts.{}.gate_proj.weight",
            "ffn_up_exps.weight": "experts.{}.up_proj.weight",
            "ffn_down_exps.weight": "experts.{}.down_proj.weight",
            "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight",
            "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight",
            "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight",
        }
    ),
}
KEYS_AND_VALUES = ("attn_k.", "attn_v.", "attn_k_norm.")


class Gemma(Architecture):
    """Gemma 1."""

    class_name = "GemmaForCausalLM"
    model_type = "gemma"
    activation = "gelu_pytorch_tanh"

    def config(self) -> dict[str, Any]:
        return super().config() | {"hidden_activation": self.activation, "attention_bias": False}

    def outer(self) -> dict[str, Tensor]:
        return centred(super().outer())

    def layer(self, number: int) -> dict[str, Tensor]:
        return centred(super().layer(number))


class Gemma2(Gemma):
    """Gemma 2: four norms a layer, caps of scores and logits."""

    class_name = "Gemma2ForCausalLM"
    model_type = "gemma2"
    has_head = False

    def config(self) -> dict[str, Any]:
        return super().config() | {
            "attn_logit_softcapping": self.number("attn_logit_softcapping", 50.0),
            "final_logit_softcapping": self.number("final_logit_softcapping", 30.0),
            "query_pre_attn_scalar": self.query_scale(),
            "sliding_window": self.size("attention.sliding_window", 4096),
        }

    def query_scale(self) -> int:
        """Of which queries are divided by the root: no file says it; that of the largest model is
        its hidden size per head (https://arxiv.org/abs/2408.00118, table 1)."""
        if self.num_layers == 46:
            return self.size("embedding_length") // self.size("attention.head_count")
        return self.head_dim

    def layer(self, number: int) -> dict[str, Tensor]:
        return super().layer(number) | centred(FOUR_NORMS)


class Gemma3(Gemma2):
    """Gemma 3's text: norms of heads, five layers with windows to one without."""

    class_name = "Gemma3ForCausalLM"
    model_type = "gemma3_text"
    has_head = True

    def config(self) -> dict[str, Any]:
        config = super().config()
        cap = "final_logit_softcapping"
        return config | {
            "attn_logit_softcapping": None,
            cap: config[cap] if self.has(cap) else None,
            "layer_types": layer_types(self.windowed(6)),
            "rope_local_base_freq": self.number("rope.freq_base_swa", 10000.0),
        }

    def query_scale(self) -> int:
        """As of Gemma 2; the largest model has 62 layers."""
        if self.num_layers == 62:
            return self.size("embedding_length") // self.size("attention.head_count")
        return self.head_dim

    def rotary(self) -> dict[str, Any]:
        config = super().rotary()
        if not self.has("rope.freq_base"):
            config["rope_theta"] = 1000000.0
        return config

    def layer(self, number: int) -> dict[str, Tensor]:
        return super().layer(number) | centred(HEAD_NORMS)


class SharedKeys(Gemma3):
    """What Gemma 3n and 4 have in common: layers that share keys and values, inputs of each layer,
    norms around 1."""

    @property
    def per_layer_input(self) -> int:
        """The width of what each layer is given of a token."""
        return self.size("embedding_length_per_layer_input", 0, least=0)

    @property
    def owners(self) -> int:
        """The first layers, which have keys and values of their own; the others share theirs."""
        owners = self.num_layers - self.size("attention.shared_kv_layers", 0, least=0)
        if owners < 1:
            raise self.file.error("has no layer with keys and values")
        return owners

    def config(self) -> dict[str, Any]:
        table = self.file.tensors.get("per_layer_token_embd.weight")
        return super().config() | {
            "hidden_size_per_layer_input": self.per_layer_input,
            "num_kv_shared_layers": self.num_layers - self.owners,
            "vocab_size_per_layer_input": table.shape[0] if table else self.vocab_size,
        }

    def rotary(self) -> dict[str, Any]:
        if self.file.get(f"{self.name}.rope.scaling.type", str, "none") != "none":
            raise self.refuse("scales its positions")
        theta = self.number("rope.freq_base", 1000000.0)
        local = self.number("rope.freq_base_swa", 10000.0)
        return {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": theta},
                "sliding_attention": {"rope_type": "default", "rope_theta": local},
            }
        }

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        return super().sizes(layer, config) | {
            "own": self.per_layer_input,
            "all_own": self.per_layer_input * self.num_layers,
            "own_vocabulary": config["vocab_size_per_layer_input"],
        }

    def outer(self) -> dict[str, Tensor]:
        return OUTER | PER_LAYER_OUTER if self.per_layer_input else OUTER

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = ATTENTION | FOUR_NORMS | MLP | HEAD_NORMS
        if number >= self.owners:
            tensors = {n: t for n, t in tensors.items() if not n.startswith(KEYS_AND_VALUES)}
        return tensors | PER_LAYER if self.per_layer_input else tensors

    def ignored(self, name: str) -> bool:
        block, kind = re.match(r"blk\.(\d+)\.", name), name.split(".", 2)[-1]
        unused = block is not None and int(block[1]) >= self.owners
        return (unused and kind.startswith(KEYS_AND_VALUES)) or super().ignored(name)


class Gemma3n(SharedKeys):
    """Gemma 3n's text: four streams of hidden states."""

    class_name = "Gemma3nForCausalLM"
    model_type = "gemma3n_text"
    has_head = False

    @property
    def owners(self) -> int:
        if not self.has("attention.shared_kv_layers"):
            return min(20, self.num_layers)  # of both published models
        return super().owners

    def config(self) -> dict[str, Any]:
        streams = self.size("altup.num_inputs", 4)
        left = self.file.tensors.get("blk.0.laurel_l.weight")
        if left is None:
            raise self.file.error("has no tensor 'blk.0.laurel_l.weight'", "choose a whole model")
        return super().config() | {
            "activation_sparsity_pattern": self.sparsity(),
            "altup_active_idx": self.size("altup.active_idx", 0, least=0),
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_num_inputs": streams,
            "final_logit_softcapping": self.number("final_logit_softcapping", 30.0),
            "intermediate_size": self.per_layer("feed_forward_length", least=1),
            "laurel_rank": left.shape[0],
            "layer_types": layer_types(self.windowed(5)),
        }

    def intermediate_size(self) -> int:
        return self.per_layer("feed_forward_length", least=1)[0]

    def sparsity(self) -> list[float]:
        """How many of each layer's gates are cut off, of which the file has the deviations."""
        key = self.field("activation_sparsity_scale")
        found = self.file.metadata.get(key)
        if found is None:
            return [0.95 if layer < 10 else 0.0 for layer in range(self.num_layers)]
        if not isinstance(found, np.ndarray):
            raise self.file.error(f"has a field '{key}' of another type than expected")
        scales = [float(value) for value in found]
        if len(scales) < self.num_layers or any(math.isnan(value) for value in scales):
            raise self.file.error(f"has {len(scales)} numbers in the field '{key}'")
        shares = [(1 + math.erf(scale / math.sqrt(2))) / 2 for scale in scales]
        return [round(share, 6) for share in shares[: self.num_layers]]

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        widths = config["intermediate_size"]
        streams = config["altup_num_inputs"]
        return super().sizes(layer, config | {"intermediate_size": widths[layer]}) | {
            "streams": streams,
            "others": streams - 1,
            "pairs": streams * streams,
            "rank": config["laurel_rank"],
        }

    def outer(self) -> dict[str, Tensor]:
        # The host's names: it looks for these layers under them.
        own = {
            name: replace(tensor, name=tensor.name.replace("model.", "model.self_decoder."))
            for name, tensor in PER_LAYER_OUTER.items()
        }
        return OUTER | own | STREAMS_OUTER

    def layer(self, number: int) -> dict[str, Tensor]:
        return super().layer(number) | STREAMS


class Gemma4(SharedKeys):
    """Gemma 4's text: other heads in layers without windows, experts."""

    class_name = "Gemma4ForCausalLM"
    model_type = "gemma4_text"

    def config(self) -> dict[str, Any]:
        config = super().config()
        windowed = self.windowed(0)
        if not self.has("attention.sliding_window_pattern") or windowed[-1]:
            raise self.refuse("has a window in its last layer")
        groups = self.per_layer("attention.head_count_kv", least=1)
        own = {"head_dim": self.head_dim}
        layers = {
            str(layer): {**own, "num_key_value_heads": groups[layer]}
            for layer in range(self.num_layers)
            if not windowed[layer]
        }
        local = [count for count, window in zip(groups, windowed, strict=True) if window]
        if len(set(local)) > 1:
            raise self.refuse("has layers with windows of different heads")
        config |= {
            "attention_k_eq_v": False,  # such layers are given keys as values
            "head_dim": self.size("attention.key_length_swa"),
            "num_key_value_heads": local[0] if local else groups[0],
            "per_layer_config": layers,
            "layer_types": layer_types(windowed),
            "use_double_wide_mlp": self.double_wide(),
            "enable_moe_block": False,
        }
        if self.mixture:
            experts = self.experts()
            config |= {**experts, "top_k_experts": experts["num_experts_per_tok"]}
            config["enable_moe_block"] = True
        return config

    @property
    def mixture(self) -> bool:
        """Whether there are experts beside the dense layers."""
        return self.size("expert_count", 0, least=0) > 0

    def kv_heads(self) -> int:
        return self.per_layer("attention.head_count_kv", least=1)[0]

    def intermediate_size(self) -> int:
        return self.per_layer("feed_forward_length", least=1)[0]

    def double_wide(self) -> bool:
        """Whether layers that share keys have dense layers of twice the width."""
        widths = self.per_layer("feed_forward_length", least=1)
        last = widths[-1] if self.owners < self.num_layers else widths[0]
        expected = [widths[0]] * self.owners + [last] * (self.num_layers - self.owners)
        if widths != expected or last not in (widths[0], 2 * widths[0]):
            raise self.refuse("has dense layers of other widths than one or twice that")
        return bool(last != widths[0])

    def rotary(self) -> dict[str, Any]:
        config = super().rotary()
        head, local = self.head_dim, self.size("attention.key_length_swa")
        if self.size("attention.value_length_swa", local) != local:
            raise self.refuse("has keys and values of different lengths")
        if self.size("rope.dimension_count", head) != head:
            raise self.refuse("rotates a part of each head")
        if self.size("rope.dimension_count_swa", local) != local:
            raise self.refuse("rotates a part of each head")
        if ROPE_FACTORS in self.file.tensors:
            # 1 for pairs that are rotated, and so much for the others that they hardly are.
            factors = self.vector(ROPE_FACTORS, head // 2)
            count = int((factors == 1).sum())
            if not count or (factors[:count] != 1).any() or (factors[count:] < 1e20).any():
                raise self.refuse(f"has factors of positions in '{ROPE_FACTORS}'")
            kind = {"rope_type": "proportional", "partial_rotary_factor": 2 * count / head}
            config["rope_parameters"]["full_attention"] |= kind
        return config

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        config = {**config, **config["per_layer_config"].get(str(layer), {})}
        if config["use_double_wide_mlp"] and layer >= self.owners:
            config["intermediate_size"] *= 2
        return super().sizes(layer, config)

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = super().layer(number)
        tensors |= {"layer_output_scale.weight": Tensor("layer_scalar", (1,), optional=True)}
        own = [self.present(f"attn_{part}.weight", number) for part in ("v", "qkv")]
        if number < self.owners and not any(own):
            del tensors["attn_v.weight"]
            tensors["attn_k.weight|v"] = Tensor("self_attn.v_proj.weight")
        return tensors | GEMMA4_EXPERTS if self.mixture else tensors


KNOWN = {
    "gemma": Gemma,
    "gemma2": Gemma2,
    "gemma3": Gemma3,
    "gemma3n": Gemma3n,
    "gemma4": Gemma4,
}
