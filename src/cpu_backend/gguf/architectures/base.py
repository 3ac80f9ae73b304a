"""What an architecture of llama.cpp is as one of Hugging Face.

``Architecture`` says it of Llama; the other modules of this package have a subclass for each
architecture, which says what differs.  Without torch: scripts that write GGUF files for
comparisons run where there is none.

Names of fields and tensors: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and
llama.cpp's ``gguf-py/gguf/constants.py``.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from cpu_backend.gguf.architectures.tensors import ATTENTION, FFN_NORM, MLP, OUTER, Tensor
from cpu_backend.gguf.metadata import LARGEST, Metadata, shortest_float
from cpu_backend.gguf.reader import GgufFile

SOFTMAX, SIGMOID = 1, 2  # how scores of experts are made of a router's logits
ROPE_FACTORS = "rope_freqs.weight"
SCORES = "cls.output.weight"  # of a model that scores texts, its last layer
HARMLESS = frozenset(
    (
        *("vocab_size", "rope.scaling.finetuned", "tensor_data_layout", "expert_shared_count"),
        "rope.dimension_sections",  # of positions of pictures: in a text all are the same
        "n_deepstack_layers",  # to which pictures are given
        *("classifier.output_labels", "classifier.pooling_type"),  # of scores, if there are any
        # Each architecture has one kind of norms.
        *("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"),
    )
)

RANKING = 4  # the kind of pooling of models that score texts
# Other kinds of pooling, by their numbers in a file: the words of sentence-transformers.
POOLING = {1: "pooling_mode_mean_tokens", 2: "pooling_mode_cls_token", 3: "pooling_mode_lasttoken"}

# Llama 3.1 and later stretch slow rotations; a GGUF file holds only the resulting factors.
LLAMA3_ROPE = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def layer_types(windowed: list[bool]) -> list[str]:
    """config.json's names of layers with windows and of those without."""
    return ["sliding_attention" if window else "full_attention" for window in windowed]


class Architecture(Metadata):
    """Llama, and what others differ in.  Raises ConfigError for metadata that no such model has.

    class_name, model_type: of Hugging Face.  partial_rotary: a part of each head may be rotated.
    has_head: the host's class has an output layer of its own, also where it is the table.
    other_classes: of Hugging Face, whose files say that they are of this architecture.
    causal: tokens attend only to those before them.  llama3_rope: what a file with factors of
    positions does not say of them.
    """

    class_name = "LlamaForCausalLM"
    model_type = "llama"
    partial_rotary = False
    has_head = True
    other_classes: tuple[str, ...] = ()
    causal = True
    activation = "silu"
    epsilon = "layer_norm_rms_epsilon"
    harmless = HARMLESS
    llama3_rope = LLAMA3_ROPE

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file)
        self.has_experts = False  # found out by config()

    # ---- metadata ----------------------------------------------------------------------------

    def per_layer(self, key: str, default: int | None = None, least: int = 0) -> list[int]:
        """A whole number for each layer, or one for all."""
        found = self.file.metadata.get(self.field(key))
        if not isinstance(found, np.ndarray):
            return [self.size(key, default, least)] * self.num_layers
        values = [int(value) for value in found.tolist()]
        if len(values) < self.num_layers or not all(least <= v < LARGEST for v in values):
            raise self.file.error(f"has {len(values)} numbers in the field '{self.name}.{key}'")
        return values[: self.num_layers]

    def windowed(self, period: int, first: bool = False) -> list[bool]:
        """Whether each layer has a window: all but one of ``period``, the last of them or the
        ``first``, if the file does not say otherwise."""
        key = "attention.sliding_window_pattern"
        found = self.file.metadata.get(f"{self.name}.{key}")
        if isinstance(found, np.ndarray):
            return [bool(value) for value in self.per_layer(key)]
        period = self.size(key, period, least=0)
        full = 0 if first else period - 1
        return [period == 0 or layer % period != full for layer in range(self.num_layers)]

    def present(self, part: str, layer: int = 0) -> bool:
        """Whether a layer has the tensor ``part``."""
        return f"blk.{layer}.{part}" in self.file.tensors

    @property
    def num_layers(self) -> int:
        """Without the layers that only draft tokens."""
        layers = self.size("block_count")
        if layers > len(self.file.tensors):  # before there is a list of that length
            raise self.file.error(
                f"has {layers} in the field '{self.name}.block_count', and "
                f"{len(self.file.tensors)} tensors are too few for so many layers"
            )
        drafting = self.size("nextn_predict_layers", 0, least=0)
        if drafting >= layers:
            raise self.file.error(f"has {layers} layers, of which {drafting} only draft tokens")
        return layers - drafting

    @property
    def vocab_size(self) -> int:
        """The rows of the embedding table."""
        table = self.file.tensors.get("token_embd.weight")
        if table is None:
            raise self.file.error("has no tensor 'token_embd.weight'", "choose a whole model")
        return table.shape[0]

    @property
    def num_heads(self) -> int:
        """Of queries."""
        return self.size("attention.head_count")

    @property
    def head_dim(self) -> int:
        """Of keys and values."""
        default = max(self.size("embedding_length") // self.num_heads, 1)
        head_dim = self.size("attention.key_length", default)
        if self.size("attention.value_length", head_dim) != head_dim:
            raise self.file.error("has keys and values of different lengths, not supported here")
        return head_dim

    # ---- config.json -------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """All but tokens and dtype."""
        self.pooling()  # before the tensors of a kind that is refused
        self.check_drafting()
        if self.flag("attention.causal", self.causal) != self.causal:
            raise self.refuse("attends in other directions than models of its architecture")
        return {
            "architectures": [self.class_name],
            "model_type": self.model_type,
            "attention_dropout": 0.0,
            "head_dim": self.head_dim,
            "hidden_act": self.activation,
            "hidden_size": self.size("embedding_length"),
            "intermediate_size": self.intermediate_size(),
            "max_position_embeddings": self.size("context_length"),
            "num_attention_heads": self.num_heads,
            "num_hidden_layers": self.num_layers,
            "num_key_value_heads": self.kv_heads(),
            "rms_norm_eps": self.number(f"attention.{self.epsilon}"),
            "tie_word_embeddings": "output.weight" not in self.file.tensors,
            "vocab_size": self.vocab_size,
            **self.rotary(),
        }

    def kv_heads(self) -> int:
        """The heads of keys and values, of the layers that have any."""
        found = {n for n in self.per_layer("attention.head_count_kv", self.num_heads) if n}
        if len(found) > 1:
            raise self.refuse("has different numbers of key heads in its layers")
        return found.pop() if found else self.num_heads

    def attends(self, layer: int) -> bool:
        """Whether a layer of a hybrid has attention: such have key heads."""
        return self.per_layer("attention.head_count_kv")[layer] > 0

    def pooling(self) -> str:
        """Which states make an embedding, if the file says so."""
        kind = self.size("pooling_type", 0, least=0)
        if kind == RANKING and not self.ranks:
            raise self.file.error(f"ranks texts, and has no tensor '{SCORES}' for that")
        if kind not in (0, RANKING, *POOLING):
            raise self.refuse(f"pools in the way {kind}")
        return "" if self.ranks else POOLING.get(kind, "")

    @property
    def ranks(self) -> bool:
        """Whether it scores texts: rerankers and classifiers, of which files need not say more."""
        return SCORES in self.file.tensors

    @property
    def num_labels(self) -> int:
        """The scores of a text; a single one may be stored as a vector."""
        shape = self.file.tensors[SCORES].shape if self.ranks else (0, 0)
        return shape[0] if len(shape) > 1 else 1

    def labels(self) -> dict[str, Any]:
        """What config.json says of the scores of a text."""
        names = self.file.get(self.field("classifier.output_labels"), list, [])
        if len(names) != self.num_labels:
            names = [f"LABEL_{number}" for number in range(self.num_labels)]
        return {
            "id2label": {str(number): name for number, name in enumerate(names)},
            "label2id": {name: number for number, name in enumerate(names)},
        }

    def intermediate_size(self) -> int:
        """Of the dense layers."""
        return self.size("feed_forward_length")

    def experts(self, count: str = "num_experts") -> dict[str, Any]:
        """Of a mixture; ``count``: config.json's name for the number of its experts."""
        self.has_experts = True
        self.field("feed_forward_length")  # of dense layers, if there are any
        number, used = self.size("expert_count"), self.size("expert_used_count")
        if used > number:
            raise self.file.error(f"uses {used} of {number} experts")
        return {
            count: number,
            "num_experts_per_tok": used,
            "moe_intermediate_size": self.expert_ffn(),
        }

    def check_router(self, gating: int, normed: bool | None, scaled: bool = False) -> None:
        """Refuses what a class does not do with the scores of experts.

        gating: SOFTMAX or SIGMOID.  normed: whether the weights of those in use sum to 1, unless
        the class reads that.  scaled: the class reads by what they are multiplied.
        """
        self.has_experts = True
        if (found := self.size("expert_gating_func", 0, least=0)) not in (0, gating):
            raise self.refuse(f"chooses experts by the function {found}")
        key_normed = "expert_weights_norm"
        if normed is not None and self.flag(key_normed, normed) != normed:
            raise self.refuse(f"has '{key_normed}' {'un' if normed else ''}set")
        if not scaled and (scale := self.weights_scale()) != 1:
            raise self.refuse(f"multiplies what experts give by {scale}")
        if (groups := self.size("expert_group_count", 1, least=0)) > 1:
            raise self.refuse(f"chooses among {groups} groups of experts")
        self.field("expert_group_used_count")  # of one

    def weights_scale(self) -> float:
        """By which the sum of the experts is multiplied; 0 is none, too."""
        value = self.file.get(self.field("expert_weights_scale"), (int, float), 1.0)
        return self.number("expert_weights_scale", 1.0) if value else 1.0

    def expert_ffn(self) -> int:
        """The width of an expert."""
        width = self.size("feed_forward_length", 0, least=0)
        return self.size("expert_feed_forward_length", width)

    def rotary(self) -> dict[str, Any]:
        """Base and scaling of the positions, and how much of a head is rotated."""
        config: dict[str, Any] = {
            "rope_theta": self.number("rope.freq_base", 10000.0),
            "rope_scaling": self.rope_scaling(),
        }
        rotated = self.size("rope.dimension_count", self.head_dim)
        if rotated % 2 or rotated > self.head_dim:
            raise self.file.error(f"rotates {rotated} of {self.head_dim} channels of each head")
        if rotated != self.head_dim:
            if not self.partial_rotary:
                raise self.file.error("rotates only a part of each head, which is not supported")
            config["partial_rotary_factor"] = rotated / self.head_dim
        return config

    def not_rotary(self) -> dict[str, Any]:
        """``rotary`` of attention without positions: what files say of them is idle."""
        for key in ("rope.dimension_count", "rope.freq_base"):
            self.field(key)
        return {}

    def rope_scaling(self) -> dict[str, Any] | None:
        """How positions are stretched."""
        if ROPE_FACTORS in self.file.tensors:
            return self._llama3_scaling()
        kind = self.text("rope.scaling.type", "none")
        if kind == "none":
            return None
        if kind not in ("linear", "yarn"):
            raise self.file.error(f"scales its positions by '{kind}', which is not supported")
        scaling = {"rope_type": kind, "factor": self.number("rope.scaling.factor")}
        if kind == "yarn":
            original = self.size("rope.scaling.original_context_length")
            scaling["original_max_position_embeddings"] = original
            for key, name in YARN_FIELDS.items():
                if self.has(f"rope.scaling.yarn_{key}"):
                    scaling[name] = self.number(f"rope.scaling.yarn_{key}")
        return scaling

    def _llama3_scaling(self) -> dict[str, Any]:
        """The parameters of which a file with factors has the result, checked to be those."""
        found = self.vector(ROPE_FACTORS, self.head_dim // 2)
        scaling = {"rope_type": "llama3", "factor": shortest_float(float(found.max()))}
        scaling |= self.llama3_rope
        own = llama3_factors(self.stretched, self.number("rope.freq_base", 10000.0), scaling)
        expected = np.pad(own, (0, len(found) - len(own)), constant_values=1)
        if not np.allclose(found, expected, rtol=1e-4):
            raise self.file.error(
                f"has factors of positions in '{ROPE_FACTORS}' that are not those of Llama 3",
                "use the original checkpoint",
            )
        return scaling

    @property
    def stretched(self) -> int:
        """The channels of a head that such factors are for."""
        return self.head_dim

    def vector(self, name: str, length: int) -> np.ndarray:
        """The fp32 numbers of a tensor that is part of the configuration."""
        info = self.file.tensors[name]
        if info.kind.name != "F32" or info.shape != (length,):
            raise self.file.error(f"has the tensor '{name}' of another shape than expected")
        order = np.dtype(f"{self.file.order}f4")
        return np.fromfile(info.path, order, length, offset=info.offset).astype(np.float64)

    # ---- tensors -----------------------------------------------------------------------------

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        """What the names in shapes stand for in a layer; -1 for those outside of layers."""
        del layer
        head, heads = config["head_dim"], config["num_attention_heads"]
        groups = config["num_key_value_heads"]
        return {
            "vocabulary": config["vocab_size"],
            "hidden": config["hidden_size"],
            "head": head,
            "heads": heads,
            "groups": groups,
            "kernel": self.size("ssm.conv_kernel", 0, least=0),
            "queries": heads * head,
            "keys": groups * head,
            "values": groups * head,
            "qkv": (heads + 2 * groups) * head,
            "outputs": heads * head,
            "ffn": config["intermediate_size"],
            "expert_ffn": config.get("moe_intermediate_size", 0),
            "experts": self.size("expert_count", 0, least=0),
            "shared_ffn": self.size("expert_shared_feed_forward_length", 0, least=0),
            "labels": self.num_labels,
        }

    def outer(self) -> dict[str, Tensor]:
        """The tensors outside of layers."""
        return OUTER

    def layer(self, number: int) -> dict[str, Tensor]:
        """The tensors of a layer, with names below ``prefix``."""
        del number
        return ATTENTION | FFN_NORM | MLP

    def constants(self) -> dict[str, np.ndarray]:
        """Tensors of a checkpoint that the file has in its metadata."""
        return {}

    def prefix(self, number: int) -> str:
        """What the names of a layer's tensors begin with in a checkpoint."""
        return f"model.layers.{number}."

    def checkpoint_name(self, module: str) -> str:
        """What a checkpoint calls a module of the host."""
        return module

    def check_drafting(self) -> None:
        """That the layers which are left out, as they only draft tokens, are such; a file may also
        name them and not have them."""
        joins = r"blk\.(\d+)\.nextn\.eh_proj\.weight"  # a token's embedding and the state before
        found = [re.match(r"blk\.(\d+)\.", name) for name in self.file.tensors]
        layers = {int(block[1]) for block in found if block}
        drafting = {int(d[1]) for name in self.file.tensors if (d := re.fullmatch(joins, name))}
        if wrong := {layer for layer in layers if layer >= self.num_layers} ^ drafting:
            raise self.file.error(
                f"has the layer {min(wrong)}, and does not say whether that only drafts tokens"
            )

    def ignored(self, name: str) -> bool:
        """Whether a tensor of the file is of no use here: part of the configuration, or of layers
        that only draft tokens."""
        block = re.match(r"blk\.(\d+)\.", name)
        return name == ROPE_FACTORS or (block is not None and int(block[1]) >= self.num_layers)


# Of GGUF ("yarn_" before it) -> of config.json.
YARN_FIELDS = {
    "attn_factor": "attention_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "ext_factor": "extrapolation_factor",
}


def llama3_factors(head_dim: int, theta: float, scaling: dict[str, Any]) -> np.ndarray:
    """By what Llama 3 divides each of the head_dim / 2 frequencies: 1 for fast ones, ``factor``
    for those with fewer than ``low_freq_factor`` turns in the original context."""
    frequency = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / scaling["factor"] + smooth))
