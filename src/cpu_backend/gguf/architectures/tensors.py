"""The tensors of architectures: what a checkpoint calls them, their shapes, how they are changed.

Names of tensors in files: llama.cpp's ``gguf-py/gguf/constants.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cpu_backend.gguf.reader import TensorInfo

# By the name of a tensor without its block and ending: its shape, in names of ``sizes``.  A bias
# has that of its matrix without the last.
_MATRICES = {
    "token_embd": ("vocabulary", "hidden"),
    "output": ("vocabulary", "hidden"),
    "attn_q": ("queries", "hidden"),
    "attn_k": ("keys", "hidden"),
    "attn_v": ("values", "hidden"),
    "attn_qkv": ("qkv", "hidden"),
    "attn_output": ("hidden", "outputs"),
    "ffn_gate": ("ffn", "hidden"),
    "ffn_up": ("ffn", "hidden"),
    "ffn_down": ("hidden", "ffn"),
    "ffn_gate_inp": ("experts", "hidden"),
    "ffn_gate_exps": ("experts", "expert_ffn", "hidden"),
    "ffn_up_exps": ("experts", "expert_ffn", "hidden"),
    "ffn_down_exps": ("experts", "hidden", "expert_ffn"),
    "ffn_gate_shexp": ("shared_ffn", "hidden"),
    "ffn_up_shexp": ("shared_ffn", "hidden"),
    "ffn_down_shexp": ("hidden", "shared_ffn"),
    "cls": ("hidden", "hidden"),
    "cls.output": ("labels", "hidden"),
}
_VECTORS = {
    "attn_q_norm": "head",
    "attn_k_norm": "head",
    "attn_sinks": "heads",
    "exp_probs_b": "experts",
}
# One in the file for two or three in a checkpoint: the parts, in their order.
JOINED = {
    "attn_qkv": ("attn_q", "attn_k", "attn_v"),
    "ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps"),
}

# Makes of a number of rows or columns in the file those that a checkpoint has, in its order.
Order = Callable[[int], np.ndarray]
Rows = Callable[[Any], Any]


@dataclass(frozen=True)
class Tensor:
    """A tensor of a checkpoint: ``name`` there, {} for the number of an expert.

    shape: sizes in the file, or their names in ``sizes``; if empty, that of its kind.  heads: the
    size that counts the heads within which its rows are interleaved.  rows, columns: where they
    come from, if they are others or in another order.  loaded: makes of the rows, [rows, bytes],
    what the host's loader takes, if that is not a matrix of the checkpoint.  values: makes the
    checkpoint's numbers of the file's.  beside: name and shape of a second tensor of the file,
    whose numbers ``values`` takes too.  plain: computed unquantized by every backend, as routers
    are.  optional: a model may do without.  Several of one tensor in the file have "|" and a word
    behind its name; one of two, the rows of the second below those of the first, has "+" between
    their names.
    """

    name: str
    shape: tuple[str | int, ...] = ()
    heads: str = ""
    rows: Order | None = None
    columns: Order | None = None
    loaded: Rows | None = None
    values: Callable[..., Any] | None = None
    beside: tuple[str, tuple[str | int, ...]] | None = None
    plain: bool = False
    optional: bool = False


def named(tensors: dict[str, str]) -> dict[str, Tensor]:
    """Tensors of which there is nothing else to say."""
    return {gguf_name: Tensor(name) for gguf_name, name in tensors.items()}


def reordered(tensors: dict[str, str], order: Rows) -> dict[str, Tensor]:
    """Those with rows in another order."""
    return {gguf_name: Tensor(name, loaded=order) for gguf_name, name in tensors.items()}


def optional(tensors: dict[str, str]) -> dict[str, Tensor]:
    """Those that a model may do without."""
    return {gguf_name: Tensor(name, optional=True) for gguf_name, name in tensors.items()}


def plain(tensors: dict[str, str]) -> dict[str, Tensor]:
    """Matrices that are never quantized."""
    return {gguf_name: Tensor(name, plain=True) for gguf_name, name in tensors.items()}


def minus_one(weight: Any) -> Any:
    """Of norms around 0 the file has what they multiply by."""
    return weight - 1


def centred(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """With norms around 0 in the checkpoint."""
    return {
        name: replace(tensor, values=minus_one) if name.endswith("norm.weight") else tensor
        for name, tensor in tensors.items()
    }


OUTER = named(
    {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
)
ATTENTION = named(
    {
        "attn_norm.weight": "input_layernorm.weight",
        "attn_q.weight": "self_attn.q_proj.weight",
        "attn_k.weight": "self_attn.k_proj.weight",
        "attn_v.weight": "self_attn.v_proj.weight",
        "attn_output.weight": "self_attn.o_proj.weight",
    }
)
FFN_NORM = named({"ffn_norm.weight": "post_attention_layernorm.weight"})
MLP = named(
    {
        "ffn_gate.weight": "mlp.gate_proj.weight",
        "ffn_up.weight": "mlp.up_proj.weight",
        "ffn_down.weight": "mlp.down_proj.weight",
    }
)
QKV_BIASES = {
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
}
HEAD_NORMS = named(
    {
        "attn_q_norm.weight": "self_attn.q_norm.weight",
        "attn_k_norm.weight": "self_attn.k_norm.weight",
    }
)
EXPERTS = plain({"ffn_gate_inp.weight": "mlp.gate.weight"}) | named(
    {
        "ffn_gate_exps.weight": "mlp.experts.{}.gate_proj.weight",
        "ffn_up_exps.weight": "mlp.experts.{}.up_proj.weight",
        "ffn_down_exps.weight": "mlp.experts.{}.down_proj.weight",
    }
)


def shape_of(name: str, tensor: Tensor, sizes: dict[str, int]) -> tuple[int, ...]:
    """What shape the tensor ``name`` of a file has to have; ``name`` without its block."""
    kind, _, ending = name.rpartition(".")
    shape: tuple[str | int, ...] = tensor.shape
    if not shape:
        shape = _MATRICES.get(kind) or (_VECTORS.get(kind, "hidden"),)
        if ending == "bias" and len(shape) > 1:
            shape = shape[:-1]
    return tuple(size_of(size, sizes) for size in shape)


def size_of(size: str | int, sizes: dict[str, int]) -> int:
    """A size, or what its name stands for."""
    return sizes[size] if isinstance(size, str) else size


def joined(name: str, tensors: dict[str, TensorInfo]) -> str:
    """The tensor of the file of which ``name``, with its block, is a part; "" if there is none."""
    block, _, kind = name.rpartition(".")[0].rpartition(".")
    ending = name.rpartition(".")[2]
    for whole, parts in JOINED.items():
        if kind in parts and f"{block}.{whole}.{ending}" in tensors:
            return f"{block}.{whole}.{ending}"
    return ""
