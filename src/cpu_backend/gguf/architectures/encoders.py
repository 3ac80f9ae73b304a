"""What turns texts into embeddings: BERT, Nomic Embed, ModernBERT, EmbeddingGemma."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import Architecture, layer_types
from cpu_backend.gguf.architectures.gemma import Gemma3
from cpu_backend.gguf.architectures.llama import Llama, interleaved
from cpu_backend.gguf.architectures.tensors import (
    ATTENTION,
    FFN_NORM,
    MLP,
    Tensor,
    named,
    optional,
    plain,
)
from cpu_backend.gguf.reader import GgufFile

LLAMA_POOLING = {  # the host's words for base.POOLING
    "pooling_mode_mean_tokens": "avg",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
CLASSIFIER_POOLING = {1: "mean", 2: "cls"}


def both(tensors: dict[str, str]) -> dict[str, Tensor]:
    """With weight and bias, of names without them."""
    return named(
        {f"{name}.{e}": f"{here}.{e}" for name, here in tensors.items() for e in ("weight", "bias")}
    )


def scoring(tensors: dict[str, str]) -> dict[str, Tensor]:
    """The small layers behind a pooling, of which the host computes with numbers."""
    return plain({name: here.name for name, here in both(tensors).items()})


def tables(tensors: dict[str, str]) -> dict[str, Tensor]:
    """Those that are only looked up; of as many rows as there are."""
    return {name: Tensor(here, (name, "hidden"), plain=True) for name, here in tensors.items()}


class Encoder(Architecture):
    """Attends in both directions and has no output layer."""

    causal = False
    has_head = False
    epsilon = "layer_norm_epsilon"
    rotated = True

    def config(self) -> dict[str, Any]:
        config = super().config()
        heads = config["num_attention_heads"]
        if config.pop("num_key_value_heads") != heads:
            raise self.refuse("is an encoder whose heads share keys")
        if config.pop("head_dim") * heads != config["hidden_size"]:
            raise self.refuse("has heads that do not make up the width of the model")
        return config | {"tie_word_embeddings": True}

    def rotary(self) -> dict[str, Any]:
        return super().rotary() if self.rotated else {}

    def rows(self, name: str) -> int:
        """Of a table in the file."""
        table = self.file.tensors.get(name)
        if table is None:
            raise self.file.error(f"has no tensor '{name}'", "choose a whole model")
        return table.shape[0]

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        heads = config["num_attention_heads"]
        known = {"head_dim": self.head_dim, "num_key_value_heads": heads}
        return super().sizes(layer, config | known) | {
            name: self.rows(name)
            for name in ("position_embd.weight", "token_types.weight")
            if name in self.file.tensors
        }


class Bert(Encoder):
    """BERT and RoBERTa: BGE, E5, GTE, all-MiniLM, rerankers of BGE.  Of RoBERTa's positions a file
    has those that are used, which makes it a BERT, as it makes a BERT's of the layers behind it."""

    class_name = "BertModel"
    model_type = "bert"
    activation = "gelu"
    rotated = False

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file)
        self.stem = "bert" if self.ranks else "model"
        if self.ranks:
            self.class_name = "BertForSequenceClassification"

    def config(self) -> dict[str, Any]:
        if self.ranks and "cls.weight" not in self.file.tensors:
            raise self.file.error(
                "has scores and no layer 'cls.weight' before them, which llama.cpp's converter "
                "leaves out of BERT",
                "use the original checkpoint",
            )
        if self.ranks and self.size("classifier.pooling_type", 2) != 2:
            raise self.refuse("scores texts by another state than the first")
        config = super().config() | (self.labels() if self.ranks else {})
        positions = self.rows("position_embd.weight")
        if positions < config["max_position_embeddings"]:
            raise self.file.error(f"has only {positions} positions in 'position_embd.weight'")
        return config | {
            "layer_norm_eps": config.pop("rms_norm_eps"),
            "max_position_embeddings": positions,
            "position_embedding_type": "absolute",
            "type_vocab_size": self.rows("token_types.weight"),
        }

    def outer(self) -> dict[str, Tensor]:
        embeddings = f"{self.stem}.embeddings"
        scores = {"cls": "bert.pooler.dense", "cls.output": "classifier"} if self.ranks else {}
        return (
            named({"token_embd.weight": f"{embeddings}.word_embeddings.weight"})
            | tables(
                {
                    "position_embd.weight": f"{embeddings}.position_embeddings.weight",
                    "token_types.weight": f"{embeddings}.token_type_embeddings.weight",
                }
            )
            | both({"token_embd_norm": f"{embeddings}.LayerNorm"})
            | scoring(scores)
        )

    def layer(self, number: int) -> dict[str, Tensor]:
        return both(
            {
                "attn_q": "attention.self.query",
                "attn_k": "attention.self.key",
                "attn_v": "attention.self.value",
                "attn_output": "attention.output.dense",
                "attn_output_norm": "attention.output.LayerNorm",
                "ffn_up": "intermediate.dense",
                "ffn_down": "output.dense",
                "layer_output_norm": "output.LayerNorm",
            }
        )

    def prefix(self, number: int) -> str:
        return f"{self.stem}.encoder.layer.{number}."

    def checkpoint_name(self, module: str) -> str:
        for part in ("query", "key", "value"):
            module = module.replace(f".attention.output.{part}", f".attention.self.{part}")
        return module


class NomicBert(Encoder):
    """Nomic Embed 1 and 1.5."""

    class_name = "NomicBertModel"
    model_type = "nomic_bert"

    def config(self) -> dict[str, Any]:
        config = super().config()
        theta = config.pop("rope_theta")
        if config.pop("rope_scaling"):
            raise self.refuse("is a Nomic Embed that scales its positions")
        return config | {
            "activation_function": "swiglu",
            "layer_norm_eps": config["rms_norm_eps"],
            "layer_norm_epsilon": config.pop("rms_norm_eps"),
            "max_trained_positions": config["max_position_embeddings"],
            "mlp_fc1_bias": False,
            "mlp_fc2_bias": False,
            "n_embd": config["hidden_size"],
            "n_inner": config["intermediate_size"],
            "n_layer": config["num_hidden_layers"],
            "pad_token_id": 0,  # where a file has none: the config's class needs one
            "position_embedding_type": "rope",
            "qkv_proj_bias": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": theta},
            "rotary_emb_interleaved": False,
            "rotary_emb_scale_base": None,
            "type_vocab_size": self.rows("token_types.weight"),
        }

    def outer(self) -> dict[str, Tensor]:
        return (
            named({"token_embd.weight": "embeddings.word_embeddings.weight"})
            | tables({"token_types.weight": "embeddings.token_type_embeddings.weight"})
            | both({"token_embd_norm": "embeddings.LayerNorm"})
        )

    def layer(self, number: int) -> dict[str, Tensor]:
        return named(
            {
                "attn_qkv.weight": "attn.qkv_proj.weight",
                "attn_output.weight": "attn.out_proj.weight",
                "ffn_gate.weight": "mlp.gate_proj.weight",
                "ffn_up.weight": "mlp.up_proj.weight",
                "ffn_down.weight": "mlp.down_proj.weight",
            }
        ) | both({"attn_output_norm": "attn_ln", "layer_output_norm": "mlp_ln"})

    def prefix(self, number: int) -> str:
        return f"encoder.layers.{number}."

    def checkpoint_name(self, module: str) -> str:
        module = module.replace(".encoder.layer.", "encoder.layers.")
        return module.replace(".attention.dense", ".attn.out_proj").replace(".attention.", ".attn.")


class ModernBert(Encoder):
    """ModernBERT: windows in most layers, gates, norms without a bias."""

    class_name = "ModernBertModel"
    model_type = "modernbert"
    activation = "gelu"

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file)
        self.stem = "model." if self.ranks else ""
        if self.ranks:
            self.class_name = "ModernBertForSequenceClassification"

    def config(self) -> dict[str, Any]:
        config = super().config() | (self.scores() if self.ranks else {})
        theta = config.pop("rope_theta")
        if config.pop("rope_scaling"):
            raise self.refuse("is a ModernBERT that scales its positions")
        window = self.size("attention.sliding_window", 0, least=0)
        windowed = self.windowed(3, first=True) if window else [False] * self.num_layers
        own = self.number("rope.freq_base_swa", 10000.0)
        kind = self.text("hidden_activation", config.pop("hidden_act"))
        if kind not in ("gelu", "silu"):
            raise self.refuse(f"has the activation '{kind}'")
        return config | {
            "attention_bias": False,
            "hidden_activation": kind,
            "layer_types": layer_types(windowed),
            "local_attention": window or 2,
            "mlp_bias": False,
            "norm_bias": False,
            "norm_eps": config.pop("rms_norm_eps"),
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": theta},
                "sliding_attention": {"rope_type": "default", "rope_theta": own},
            },
        }

    def scores(self) -> dict[str, Any]:
        """What config.json says of a classifier."""
        kind = self.size("classifier.pooling_type", 2)
        if kind not in CLASSIFIER_POOLING:
            raise self.refuse(f"scores texts by the pooling {kind}")
        return self.labels() | {
            "classifier_activation": "gelu",
            "classifier_bias": False,
            "classifier_pooling": CLASSIFIER_POOLING[kind],
        }

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        return super().sizes(layer, config) | {"gate_up": 2 * config["intermediate_size"]}

    def outer(self) -> dict[str, Tensor]:
        outer = named(
            {
                "token_embd.weight": f"{self.stem}embeddings.tok_embeddings.weight",
                "token_embd_norm.weight": f"{self.stem}embeddings.norm.weight",
                "output_norm.weight": f"{self.stem}final_norm.weight",
            }
        )
        if not self.ranks:
            return outer
        norm = named({"cls.norm.weight": "head.norm.weight"})
        head = scoring({"cls": "head.dense", "cls.output": "classifier"})
        return outer | norm | {name: head[name] for name in head if name != "cls.bias"}

    def layer(self, number: int) -> dict[str, Tensor]:
        before = {"attn_norm.weight": "attn_norm.weight"}
        return (
            (optional(before) if number == 0 else named(before))
            | named(
                {
                    "attn_qkv.weight": "attn.Wqkv.weight",
                    "attn_output.weight": "attn.Wo.weight",
                    "ffn_norm.weight": "mlp_norm.weight",
                    "ffn_down.weight": "mlp.Wo.weight",
                }
            )
            | {"ffn_up.weight": Tensor("mlp.Wi.weight", ("gate_up", "hidden"))}
        )

    def prefix(self, number: int) -> str:
        return f"{self.stem}layers.{number}."

    def checkpoint_name(self, module: str) -> str:
        module = module.replace("encoder_layer.", "").lstrip(".")
        return module.replace("modernbert.", self.stem)


class EmbeddingGemma(Gemma3):
    """EmbeddingGemma, without the layers after the pooling."""

    class_name = "Gemma3TextModel"
    causal = False
    has_head = False

    def config(self) -> dict[str, Any]:
        # The window is that in both directions together, as in config.json.
        return super().config() | {
            "tie_word_embeddings": True,
            "use_bidirectional_attention": True,
        }

    def outer(self) -> dict[str, Tensor]:
        outer = super().outer()
        return {
            name: Tensor(outer[name].name.removeprefix("model."), values=outer[name].values)
            for name in ("token_embd.weight", "output_norm.weight")
        }

    def prefix(self, number: int) -> str:
        return f"layers.{number}."

    def checkpoint_name(self, module: str) -> str:
        return module.lstrip(".")


class EuroBert(Llama):
    """EuroBERT and Jina Embeddings 5 Nano, loaded as a Llama that attends in both directions, which
    computes the same."""

    class_name = "LlamaBidirectionalModel"
    causal = False
    has_head = False

    def config(self) -> dict[str, Any]:
        kind = LLAMA_POOLING.get(self.pooling(), "")
        if not kind:
            raise self.refuse("does not say how it pools")
        return super().config() | {"pooling": kind, "tie_word_embeddings": True}

    def outer(self) -> dict[str, Tensor]:
        return {
            name: Tensor(tensor.name.removeprefix("model."))
            for name, tensor in super().outer().items()
            if name != "output.weight"
        }

    def prefix(self, number: int) -> str:
        return f"layers.{number}."

    def checkpoint_name(self, module: str) -> str:
        return module.removeprefix("model.").lstrip(".")

    def layer(self, number: int) -> dict[str, Tensor]:
        return ATTENTION | FFN_NORM | MLP


class LlamaEmbed(EuroBert):
    """Llama Nemotron embeddings, which are means; files do not say so."""

    def pooling(self) -> str:
        return super().pooling() or "pooling_mode_mean_tokens"

    def layer(self, number: int) -> dict[str, Tensor]:
        return interleaved(super().layer(number))


KNOWN = {
    "bert": Bert,
    "eurobert": EuroBert,
    "llama-embed": LlamaEmbed,
    "nomic-bert": NomicBert,
    "modern-bert": ModernBert,
    "gemma-embedding": EmbeddingGemma,
}
