"""What a GGUF file is as a Hugging Face checkpoint: config.json and named tensors.

A model has all tensors of its architecture (``names.py``) and no others.  The order of rows is the
one difference in content: llama.cpp interleaves the halves of each head of Llama's query and key
projections, and here they are put back (``undo_rope_permutation``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cpu_backend.gguf import blocks
from cpu_backend.gguf.names import ARCHITECTURES, HEAD_NORMS, MIXTURES, OUTER_TENSORS, ROUTER
from cpu_backend.gguf.reader import BlockType, GgufFile, TensorInfo

TABLE, HEAD = OUTER_TENSORS["token_embd.weight"], OUTER_TENSORS["output.weight"]
ROPE_FACTORS = "rope_freqs.weight"
# Llama 3.1 and later stretch slow rotations; a GGUF file holds only the resulting factors.
LLAMA3_ROPE = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LARGEST = 1 << 31  # of any size in the metadata


@dataclass(frozen=True)
class Entry:
    """A tensor of the checkpoint; ``heads`` if its rows are interleaved within each head."""

    info: TensorInfo
    heads: int = 0

    @property
    def is_router(self) -> bool:
        """Whether it chooses experts: a matrix that every backend computes unquantized."""
        return self.info.name.endswith(ROUTER)


class Checkpoint:
    """A whole model in a GGUF file; raises ConfigError for anything that is not one.

    config: what config.json would say.  entries: the tensors under their Hugging Face names, the
    experts of a layer in one, [experts, rows, columns], with {} for the number; a tied output layer
    is not among them.
    """

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        name = file.get("general.architecture", str)
        mixture = file.get(f"{name}.expert_count", int, 0) != 0
        known = MIXTURES if mixture else ARCHITECTURES
        if name not in known:
            kind = "mixture of experts" if mixture else "model"
            raise file.error(
                f"holds a {kind} of the architecture '{name}', which is not supported",
                f"choose one of {', '.join(known)}, or the original checkpoint",
            )
        if file.get("split.count", int, 1) != 1:
            raise file.error("is one part of several", "merge them with llama-gguf-split --merge")
        self._name = name
        self.architecture = known[name]
        self.config = self._config()
        self.entries = self._entries()
        self.config |= {"rope_scaling": self._rope_scaling(), "torch_dtype": self._dtype()}

    @property
    def tied(self) -> bool:
        """Whether the embedding table is the output layer too."""
        return HEAD not in self.entries

    @property
    def table(self) -> BlockType:
        """The type of the embedding table."""
        return self.entries[TABLE].info.kind

    # ---- config.json -------------------------------------------------------------------------

    def _size(self, key: str, default: int | None = None) -> int:
        value = self.file.get(f"{self._name}.{key}", int, default)
        if not 1 <= value < LARGEST:
            raise self.file.error(f"has {value} in the field '{self._name}.{key}'")
        return int(value)

    def _number(self, key: str, default: float | None = None) -> float:
        value = self.file.get(f"{self._name}.{key}", (int, float), default)
        if not (math.isfinite(value) and value > 0):
            raise self.file.error(f"has {value} in the field '{self._name}.{key}'")
        return shortest_float(value)

    def token(self, role: str) -> int | None:
        """The id of a special token: bos, eos, eot, padding."""
        key = f"tokenizer.ggml.{role}_token_id"
        if key not in self.file.metadata:
            return None
        token = self.file.get(key, int)
        if not 0 <= token < self._vocab_size():
            raise self.file.error(f"has no token {token}, which is its {role} token")
        return token

    def _vocab_size(self) -> int:
        table = self.file.tensors.get("token_embd.weight")
        if table is None:
            raise self.file.error("has no tensor 'token_embd.weight'", "choose a whole model")
        return table.shape[0]

    def _config(self) -> dict[str, Any]:
        hidden_size, num_heads = self._size("embedding_length"), self._size("attention.head_count")
        head_dim = self._size("attention.key_length", max(hidden_size // num_heads, 1))
        if self._size("attention.value_length", head_dim) != head_dim:
            raise self.file.error("has keys and values of different lengths, not supported here")
        if self._size("rope.dimension_count", head_dim) != head_dim or head_dim % 2:
            raise self.file.error("rotates only a part of each head, which is not supported")
        return {
            "architectures": [self.architecture.class_name],
            "model_type": self.architecture.model_type or self._name,
            **dict(self.architecture.config),
            "attention_dropout": 0.0,
            "bos_token_id": self.token("bos"),
            "eos_token_id": self.token("eos"),
            "pad_token_id": self.token("padding"),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "hidden_size": hidden_size,
            **self._feed_forward(),
            "max_position_embeddings": self._size("context_length"),
            "num_attention_heads": num_heads,
            "num_hidden_layers": self._size("block_count"),
            "num_key_value_heads": self._size("attention.head_count_kv", num_heads),
            "rms_norm_eps": self._number("attention.layer_norm_rms_epsilon"),
            "rope_scaling": None,
            "rope_theta": self._number("rope.freq_base", 10000.0),
            "tie_word_embeddings": "output.weight" not in self.file.tensors,
            "torch_dtype": "bfloat16",
            "vocab_size": self._vocab_size(),
        }

    def _feed_forward(self) -> dict[str, int]:
        if not self.architecture.num_experts:
            return {"intermediate_size": self._size("feed_forward_length")}
        count, used = self._size("expert_count"), self._size("expert_used_count")
        if used > count:
            raise self.file.error(f"uses {used} of {count} experts")
        key = "expert_feed_forward_length"
        if f"{self._name}.{key}" not in self.file.metadata:
            key = "feed_forward_length"
        size = self._size(key)
        return {
            self.architecture.num_experts: count,
            "num_experts_per_tok": used,
            "intermediate_size": size,
            "moe_intermediate_size": size,
        }

    def _dtype(self) -> str:
        """That of the matrices; quantized ones are computed in bfloat16."""
        query = self.file.tensors["blk.0.attn_q.weight"]
        return {"F32": "float32", "F16": "float16"}.get(query.kind.name, "bfloat16")

    def _rope_scaling(self) -> dict[str, Any] | None:
        if ROPE_FACTORS in self.file.tensors:
            return self._llama3_rope()
        kind = self.file.get(f"{self._name}.rope.scaling.type", str, "none")
        if kind == "none":
            return None
        if kind not in ("linear", "yarn"):
            raise self.file.error(f"scales its positions by '{kind}', which is not supported")
        scaling = {"rope_type": kind, "factor": self._number("rope.scaling.factor")}
        if kind == "yarn":
            original = self._size("rope.scaling.original_context_length")
            scaling["original_max_position_embeddings"] = original
        return scaling

    def _llama3_rope(self) -> dict[str, Any]:
        """The parameters of which a file with factors has the result, checked to be those."""
        info = self.file.tensors[ROPE_FACTORS]
        head_dim, theta = self.config["head_dim"], self.config["rope_theta"]
        if info.kind.quantized or info.shape != (head_dim // 2,):
            raise self.file.error(f"has the tensor '{ROPE_FACTORS}' of another shape than expected")
        found = self.values(Entry(info)).double()
        scaling = {"rope_type": "llama3", "factor": shortest_float(float(found.max()))}
        scaling |= LLAMA3_ROPE
        expected = llama3_factors(head_dim, theta, scaling)
        if not torch.allclose(found, expected, rtol=1e-4):
            raise self.file.error(
                f"has factors of positions in '{ROPE_FACTORS}' that are not those of Llama 3",
                "use the original checkpoint",
            )
        return scaling

    # ---- tensors -----------------------------------------------------------------------------

    def _entries(self) -> dict[str, Entry]:
        entries = {}
        for gguf_name, name, shape in self._expected():
            info = self.file.tensors.get(gguf_name)
            if info is None:
                raise self.file.error(f"has no tensor '{gguf_name}'", "choose a whole model")
            if info.shape != shape:
                raise self.file.error(
                    f"has the tensor '{gguf_name}' of shape {list(info.shape)} and "
                    f"{list(shape)} is expected"
                )
            if len(shape) == 1 and info.kind.quantized:
                raise self.file.error(f"has the vector '{gguf_name}' in {info.kind.name}")
            if gguf_name.endswith("ffn_up_exps.weight"):
                self._check_gate(info)
            entries[name] = Entry(info, self._interleaved_heads(gguf_name))
        unknown = self.file.tensors.keys() - {e.info.name for e in entries.values()}
        for gguf_name in sorted(unknown - {ROPE_FACTORS}):
            raise self.file.error(
                f"has the unknown tensor '{gguf_name}'", "use the original checkpoint"
            )
        return entries

    def _check_gate(self, up: TensorInfo) -> None:
        """An expert's gate and up projection are packed as one matrix."""
        gate = self.file.tensors[up.name.replace("up", "gate")]
        if gate.kind != up.kind:
            raise self.file.error(
                f"has '{gate.name}' in {gate.kind.name} and '{up.name}' in {up.kind.name}",
                "choose one with both in the same type",
            )

    def _interleaved_heads(self, gguf_name: str) -> int:
        if not self.architecture.interleaved:
            return 0
        part = gguf_name.split(".", 2)[-1]
        if part == "attn_q.weight":
            return int(self.config["num_attention_heads"])
        return int(self.config["num_key_value_heads"]) if part == "attn_k.weight" else 0

    def _expected(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """(GGUF name, Hugging Face name, shape) of every tensor that the model has."""
        config = self.config
        hidden, ffn, head = (config[k] for k in ("hidden_size", "intermediate_size", "head_dim"))
        experts = config.get(self.architecture.num_experts, 0)
        queries = config["num_attention_heads"] * head
        keys = config["num_key_value_heads"] * head
        outs = {"q": queries, "k": keys, "v": keys, "gate": ffn, "up": ffn, "gate_inp": experts}
        for gguf_name, name in OUTER_TENSORS.items():
            if gguf_name != "output.weight" or not config["tie_word_embeddings"]:
                is_norm = gguf_name == "output_norm.weight"
                yield gguf_name, name, (hidden,) if is_norm else (config["vocab_size"], hidden)
        for layer in range(config["num_hidden_layers"]):
            for gguf_name, name in self.architecture.layer_tensors.items():
                short = re.sub(r".*?_(\w+?)(_exps)?\.\w+", r"\1", gguf_name)
                if gguf_name in HEAD_NORMS:
                    shape: tuple[int, ...] = (head,)
                elif short == "norm":
                    shape = (hidden,)
                elif gguf_name.endswith(".bias"):
                    shape = (outs[short],)
                elif short in outs:
                    shape = (outs[short], hidden)
                else:
                    shape = (hidden, queries if short == "output" else ffn)
                if "_exps." in gguf_name:
                    shape = (experts, *shape)
                yield f"blk.{layer}.{gguf_name}", f"model.layers.{layer}.{name}", shape

    def raw(self, entry: Entry) -> torch.Tensor:
        """The bytes of a tensor, uint8 [rows, bytes], rows in checkpoint order; mapped, or a copy
        where they had to be moved."""
        info = entry.info
        mapped = torch.from_file(  # private: nothing that is done to it reaches the file
            str(self.file.path), shared=False, size=info.offset + info.nbytes, dtype=torch.uint8
        )
        rows = mapped[info.offset :].view(-1, info.row_bytes)
        # A quantized block lies within one row, so moving rows loses nothing.
        return undo_rope_permutation(rows, entry.heads) if entry.heads else rows

    def values(self, entry: Entry, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor as numbers of ``dtype``."""
        info = entry.info
        return blocks.dequantize(info.kind, self.raw(entry), self.file.order, dtype).view(
            info.shape
        )


def undo_rope_permutation(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Bring rows of a query or key projection from GGUF order back to checkpoint order.

    weight [num_heads * head_dim, any].  RoPE turns pairs of rows of each head: llama.cpp stores a
    pair as rows (2i, 2i + 1), a Hugging Face checkpoint as rows (i, i + head_dim / 2).
    """
    head_dim = weight.shape[0] // num_heads
    pairs = weight.reshape(num_heads, head_dim // 2, 2, -1)
    return pairs.transpose(1, 2).reshape(weight.shape)


def llama3_factors(head_dim: int, theta: float, scaling: dict[str, Any]) -> torch.Tensor:
    """By what Llama 3 divides each of the head_dim / 2 frequencies: 1 for fast ones, ``factor``
    for those with fewer than ``low_freq_factor`` turns in the original context."""
    frequency = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - smooth) / scaling["factor"] + smooth)


def shortest_float(value: float) -> float:
    """The decimal number that a stored fp32 value was meant to be: 9.999999747e-06 -> 1e-05."""
    return float(str(np.float32(value)))
