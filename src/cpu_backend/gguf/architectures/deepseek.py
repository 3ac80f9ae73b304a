"""DeepSeek: the first mixture, and latent attention of V2, V3 and what is built like them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cpu_backend.gguf.architectures.base import SIGMOID, SOFTMAX
from cpu_backend.gguf.architectures.llama import interleaved
from cpu_backend.gguf.architectures.routed import CORRECTION, Routed
from cpu_backend.gguf.architectures.tensors import ATTENTION, FFN_NORM, Tensor, named
from cpu_backend.gguf.metadata import shortest_float
from cpu_backend.gguf.reader import GgufFile


class Deepseek(Routed):
    """DeepSeek MoE, the first, whose config transformers does not know."""

    class_name = "DeepseekForCausalLM"
    model_type = "glm4_moe"
    scoring = (SOFTMAX,)

    def config(self) -> dict[str, Any]:
        if self.weights_scale() != 1:
            raise self.refuse("scales the weights of experts")
        config = super().config()
        if config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]:
            raise self.refuse("has heads that do not add up to the hidden size")
        return config | {"attention_bias": False, "partial_rotary_factor": 1.0}

    def layer(self, number: int) -> dict[str, Tensor]:
        # The host makes its attention without names, so what would be packed cannot be found.
        attention = {name: replace(tensor, plain=True) for name, tensor in ATTENTION.items()}
        return interleaved(attention | FFN_NORM) | self.feed_forward(number)


class Ling1(Deepseek):
    """Ling 1, which computes the same; the norm that its output layer may have is multiplied in."""


def joined_heads(keys: Any, values: Any) -> Any:
    """kv_b_proj [heads * (keys + values), rank] of its parts: keys [heads, rank, keys], as queries
    are multiplied by them, and values [heads, values, rank]."""
    import torch  # the module is read without it

    return torch.cat((keys.transpose(1, 2), values), 1).flatten(0, 1)


LATENT = named(
    {
        "attn_norm.weight": "input_layernorm.weight",
        "attn_output.weight": "self_attn.o_proj.weight",
    }
) | {
    "attn_kv_a_mqa.weight": Tensor("self_attn.kv_a_proj_with_mqa.weight", ("kv_a", "hidden")),
    "attn_kv_a_norm.weight": Tensor("self_attn.kv_a_layernorm.weight", ("kv_rank",)),
}
QUERIES = named({"attn_q.weight": "self_attn.q_proj.weight"})
LATENT_QUERIES = {
    "attn_q_a.weight": Tensor("self_attn.q_a_proj.weight", ("q_rank", "hidden")),
    "attn_q_a_norm.weight": Tensor("self_attn.q_a_layernorm.weight", ("q_rank",)),
    "attn_q_b.weight": Tensor("self_attn.q_b_proj.weight", ("queries", "q_rank")),
}
KV_B = "self_attn.kv_b_proj.weight"
WHOLE_KV_B = {"attn_kv_b.weight": Tensor(KV_B, ("kv_b", "kv_rank"))}
CUT_KV_B = {
    "attn_k_b.weight": Tensor(
        KV_B,
        ("heads", "kv_rank", "key"),
        values=joined_heads,
        beside=("attn_v_b.weight", ("heads", "value", "kv_rank")),
    )
}


class Deepseek2(Routed):
    """DeepSeek V2 and V3, Kimi K2, GLM 4.7 Flash and others with latent attention.

    Newer files have attn_k_b and attn_v_b in place of the original matrix, and say the lengths of
    keys and values of that in fields of their own.
    """

    class_name = "DeepseekV2ForCausalLM"
    model_type = "deepseek_v2"
    other_classes: tuple[str, ...] = ("DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM")
    with_sigmoid = ("DeepseekV3ForCausalLM", "deepseek_v3")
    grouped = True

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file)
        if self.gating_function() == SIGMOID:
            self.class_name, self.model_type = self.with_sigmoid

    @property
    def head_dim(self) -> int:
        """Of the part that is rotated."""
        return self.size("rope.dimension_count")

    @property
    def corrected(self) -> bool:
        """Whether experts are chosen by corrected scores."""
        return self.present("exp_probs_b.bias", self.num_layers - 1)

    def gating_function(self) -> int:
        # Older files of GLM 4.7 Flash do not say it, which llama.cpp knows by their vocabulary.
        self.gating = SIGMOID if self.vocab_size == 154880 else SOFTMAX
        return super().gating_function()

    def config(self) -> dict[str, Any]:
        table = self.file.tensors.get("token_embd.weight")
        tied = "output.weight" not in self.file.tensors
        if tied and table is not None and not table.kind.quantized:
            raise self.refuse("has latent attention and no output layer of its own")
        if self.has("attention.temperature_scale"):
            raise self.refuse("scales queries by their positions")
        if not self.shared_experts:
            raise self.refuse("has latent attention, but no shared experts")
        config = super().config()
        plain = "group_limited_greedy" if config["n_group"] > 1 else "greedy"
        return config | {
            "attention_bias": False,
            "kv_lora_rank": self.size("attention.kv_lora_rank"),
            "num_key_value_heads": config["num_attention_heads"],
            "q_lora_rank": self.query_rank,
            "qk_nope_head_dim": self.length("key") - self.head_dim,
            "qk_rope_head_dim": self.head_dim,
            "topk_method": "noaux_tc" if self.corrected else plain,
            "v_head_dim": self.length("value"),
        }

    @property
    def query_rank(self) -> int | None:
        """Of the two matrices that make queries; None if there is one."""
        return None if self.present("attn_q.weight") else self.size("attention.q_lora_rank")

    def length(self, of: str) -> int:
        """Of a head's whole "key" or "value"."""
        key = f"attention.{of}_length"
        length = self.size(f"{key}_mla" if self.has(f"{key}_mla") else key)
        cached = self.size("attention.kv_lora_rank") + (self.head_dim if of == "key" else 0)
        if self.size(key, length) not in (length, cached):
            raise self.file.error(f"has {self.size(key)} in the field '{self.name}.{key}'")
        if of == "key" and length <= self.head_dim:
            raise self.file.error(f"rotates {self.head_dim} of {length} channels of each head")
        return length

    def rope_scaling(self) -> dict[str, Any] | None:
        scaling = super().rope_scaling()
        if scaling is None:
            return None
        key = "rope.scaling.yarn_log_multiplier"
        if scaling["rope_type"] != "yarn" or "attention_factor" in scaling or not self.has(key):
            raise self.refuse("scales its positions otherwise than DeepSeek")
        # The converter writes a tenth; both were the same in all models.
        scale = shortest_float(self.number(key) * 10)
        return scaling | {"mscale": scale, "mscale_all_dim": scale}

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        heads, rank = config["num_attention_heads"], config["kv_lora_rank"]
        key, value = config["qk_nope_head_dim"], config["v_head_dim"]
        return super().sizes(layer, config) | {
            "key": key,
            "value": value,
            "queries": heads * (key + self.head_dim),
            "q_rank": config["q_lora_rank"] or 0,
            "kv_rank": rank,
            "kv_a": rank + self.head_dim,
            "kv_b": heads * (key + value),
            "outputs": heads * value,
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = LATENT | FFN_NORM | self.feed_forward(number)
        tensors |= QUERIES if self.query_rank is None else LATENT_QUERIES
        tensors |= WHOLE_KV_B if self.present("attn_kv_b.weight", number) else CUT_KV_B
        if number >= self.dense_layers and self.corrected:
            tensors |= CORRECTION
        return tensors

    def ignored(self, name: str) -> bool:
        """Some files have the matrix in both forms."""
        block, _, kind = name.partition(".attn_")
        both = kind in ("k_b.weight", "v_b.weight") and f"{block}.attn_kv_b.weight" in (
            self.file.tensors
        )
        return both or super().ignored(name)


INDEXER = {
    "indexer.k_norm.weight": Tensor("self_attn.indexer.k_norm.weight", ("index_head",)),
    "indexer.k_norm.bias": Tensor("self_attn.indexer.k_norm.bias", ("index_head",)),
    "indexer.attn_q_b.weight": Tensor("self_attn.indexer.wq_b.weight", ("index_q", "q_rank")),
    # The host computes both unquantized.
    "indexer.attn_k.weight": Tensor(
        "self_attn.indexer.wk.weight", ("index_head", "hidden"), plain=True
    ),
    "indexer.proj.weight": Tensor(
        "self_attn.indexer.weights_proj.weight", ("index_heads", "hidden"), plain=True
    ),
}


class DeepseekV32(Deepseek2):
    """DeepSeek V3.2: tokens attend to those that an indexer chooses."""

    class_name = "DeepseekV32ForCausalLM"
    model_type = "deepseek_v32"
    other_classes = ()
    with_sigmoid = (class_name, model_type)
    scoring = (SIGMOID,)
    interleaved_index = False  # the channels of the indexer that turn together

    def chooses(self, layer: int) -> bool:
        """Whether a layer has an indexer; others attend to what the one before chose."""
        return True

    def config(self) -> dict[str, Any]:
        config = super().config()
        if config["q_lora_rank"] is None:
            raise self.refuse("has an indexer, and one matrix for its queries")
        return config | {
            "index_head_dim": self.size("attention.indexer.key_length"),
            "index_n_heads": self.size("attention.indexer.head_count"),
            "index_topk": self.size("attention.indexer.top_k"),
            "indexer_rope_interleave": self.interleaved_index,
        }

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        head, heads = config["index_head_dim"], config["index_n_heads"]
        index = {"index_head": head, "index_heads": heads, "index_q": head * heads}
        return super().sizes(layer, config) | index

    def layer(self, number: int) -> dict[str, Tensor]:
        return super().layer(number) | (INDEXER if self.chooses(number) else {})


class GlmDsa(DeepseekV32):
    """GLM 5: some layers have no indexer of their own."""

    class_name = "GlmMoeDsaForCausalLM"
    model_type = "glm_moe_dsa"
    with_sigmoid = (class_name, model_type)
    interleaved_index = True

    def chooses(self, layer: int) -> bool:
        return self.present("indexer.proj.weight", layer)

    def config(self) -> dict[str, Any]:
        shown = [self.chooses(layer) for layer in range(self.num_layers)]
        key = "attention.indexer.types"
        if not shown[0] or (self.has(key) and list(map(bool, self.per_layer(key))) != shown):
            raise self.file.error("has other indexers than it says", "choose a whole model")
        pattern = "".join("F" if chooses else "S" for chooses in shown)
        return super().config() | {"index_topk_pattern": pattern}


KNOWN = {
    "bailingmoe": Ling1,
    "deepseek": Deepseek,
    "deepseek2": Deepseek2,
    "deepseek32": DeepseekV32,
    "glm-dsa": GlmDsa,
}
