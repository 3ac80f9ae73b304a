"""What a GGUF file is as a Hugging Face checkpoint: config.json and named tensors.

A model has all tensors of its architecture (``architectures``) and no others.  What llama.cpp has
changed is changed back: the order of rows, of Llama's query and key projections; tensors that are
one there and several here; and numbers, where an architecture says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from cpu_backend.gguf import blocks
from cpu_backend.gguf.architectures import find
from cpu_backend.gguf.architectures.base import JOINED, Tensor, joined, shape_of, size_of
from cpu_backend.gguf.reader import BlockType, GgufFile, TensorInfo


@dataclass(frozen=True)
class Entry:
    """A tensor of the checkpoint.

    info: in the file.  shape: here; fewer rows than there where it is a part, which begins at
    ``first``.  heads: within which its rows are interleaved, if not 0.  beside: what else its
    numbers are made of.
    """

    info: TensorInfo
    tensor: Tensor
    shape: tuple[int, ...]
    first: int = 0
    heads: int = 0
    beside: Entry | None = None

    @property
    def kind(self) -> BlockType:
        """Its type in the file."""
        return self.info.kind

    @property
    def as_numbers(self) -> bool:
        """Whether it is read as numbers, and not packed from the file's blocks."""
        return len(self.shape) == 1 or self.tensor.plain or self.tensor.values is not None


class Checkpoint:
    """A whole model in a GGUF file; raises ConfigError for anything that is not one.

    config: what config.json would say.  entries: the tensors under their Hugging Face names, the
    experts of a layer in one, [experts, rows, columns], with {} for the number; a tied output layer
    is not among them.  table, head: names of the embedding table and the output layer.
    """

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.architecture = find(file)
        self.config = self.architecture.config()
        if self.architecture.size("expert_count", 0, least=0) and not self.architecture.has_experts:
            raise self.architecture.refuse("holds a mixture of experts of this architecture")
        self.entries = self._entries()
        for field in self.architecture.unread():
            raise self.architecture.refuse(f"has the field '{field}'")
        roles = {"bos": "bos", "eos": "eos", "pad": "padding"}
        tokens = {f"{name}_token_id": self.token(role) for name, role in roles.items()}
        known = {name: token for name, token in tokens.items() if token is not None}
        self.config = {**tokens, **self.config, **known, "torch_dtype": self._dtype()}

    def entry(self, layer: str) -> Entry:
        """Of a layer of the host, with ".weight"; it may be one of several in a tensor."""
        name = self.architecture.weight_of(layer)
        if name not in self.entries:
            name = re.sub(r"\.\d+(\.\w+)$", r".{}\1", name)
        return self.entries[name]

    @property
    def table(self) -> str:
        """The name of the embedding table."""
        return self.architecture.outer()["token_embd.weight"].name

    @property
    def head(self) -> str:
        """The name of the output layer."""
        head = self.architecture.outer().get("output.weight")
        return "" if head is None else head.name

    @property
    def tied(self) -> bool:
        """Whether the embedding table is the output layer too."""
        return self.head not in self.entries

    @property
    def packs_table(self) -> bool:
        """Whether the output layer is packed from the blocks of the embedding table."""
        kind = self.entries[self.table].kind
        return self.tied and kind.quantized and self.architecture.has_head

    def token(self, role: str) -> int | None:
        """The id of a special token: bos, eos, eot, padding."""
        key = f"tokenizer.ggml.{role}_token_id"
        if key not in self.file.metadata:
            return None
        token = self.file.get(key, int)
        if not 0 <= token < self.architecture.vocab_size:
            raise self.file.error(f"has no token {token}, which is its {role} token")
        return int(token)

    def _dtype(self) -> str:
        """That of the first matrix of a layer; quantized ones are computed in bfloat16."""
        kind = next(
            entry.kind.name
            for entry in self.entries.values()
            if entry.info.name.startswith("blk.") and not entry.as_numbers
        )
        return {"F32": "float32", "F16": "float16"}.get(kind, "bfloat16")

    # ---- tensors -----------------------------------------------------------------------------

    def _entries(self) -> dict[str, Entry]:
        entries = self._read(-1, "", self.architecture.outer())
        for layer in range(self.config["num_hidden_layers"]):
            entries |= self._read(layer, f"blk.{layer}.", self.architecture.layer(layer))
        for entry in entries.values():
            self._check_gate(entry)
        used = {entry.info.name for entry in entries.values()}
        used |= {entry.beside.info.name for entry in entries.values() if entry.beside}
        for name in sorted(self.file.tensors.keys() - used):
            if not self.architecture.ignored(name):
                raise self.file.error(
                    f"has the unknown tensor '{name}'", "use the original checkpoint"
                )
        return entries

    def _read(self, layer: int, block: str, tensors: dict[str, Tensor]) -> dict[str, Entry]:
        """The entries of a layer, or of what is outside of layers: -1."""
        sizes = self.architecture.sizes(layer, self.config)
        prefix = self.architecture.prefix(layer) if layer >= 0 else ""
        entries = {}
        for name, tensor in tensors.items():
            if name == "output.weight" and self.config["tie_word_embeddings"]:
                continue
            found = self._find(block, name, tensor, tensors, sizes)
            if found is not None:
                entries[prefix + tensor.name] = found
        return entries

    def _find(
        self, block: str, name: str, tensor: Tensor, tensors: dict[str, Tensor], sizes: Any
    ) -> Entry | None:
        shape = whole = shape_of(name, tensor, sizes)
        place, first = block + (tensor.source or name), 0
        if tensor.within:
            of, before, rows = tensor.within
            place, first = block + of, size_of(before, sizes)
            whole = (size_of(rows, sizes), *shape[1:])
        elif place not in self.file.tensors and (longer := joined(place, self.file.tensors)):
            place = longer
            kind, _, ending = name.rpartition(".")
            kinds = next(parts for parts in JOINED.values() if kind in parts)
            parts = [f"{part}.{ending}" for part in kinds]
            axis = max(len(shape) - 2, 0)  # of rows
            each = [shape_of(part, tensors[part], sizes)[axis] for part in parts]
            first = sum(each[: parts.index(name)])
            whole = (*shape[:axis], sum(each), *shape[axis + 1 :])
        info = self.file.tensors.get(place)
        if info is None:
            if tensor.optional:
                return None
            raise self.file.error(f"has no tensor '{place}'", "choose a whole model")
        if info.shape != whole:
            raise self.file.error(
                f"has the tensor '{place}' of shape {list(info.shape)} and "
                f"{list(whole)} is expected"
            )
        if len(shape) == 1 and info.kind.quantized:
            raise self.file.error(f"has the vector '{place}' in {info.kind.name}")
        heads = sizes[tensor.heads] if tensor.heads else 0
        beside = None
        if tensor.beside:
            name, second = tensor.beside
            beside = self._find(block, name, Tensor("", second), tensors, sizes)
        return Entry(info, tensor, shape, first, heads, beside)

    def _check_gate(self, entry: Entry) -> None:
        """An expert's gate and up projection are packed as one matrix."""
        if not entry.info.name.endswith("ffn_up_exps.weight"):
            return
        gate = self.file.tensors.get(entry.info.name.replace("up", "gate"), entry.info)
        if gate.kind != entry.kind:
            raise self.file.error(
                f"has '{gate.name}' in {gate.kind.name} and '{entry.info.name}' in "
                f"{entry.kind.name}",
                "choose one with both in the same type",
            )

    def raw(self, entry: Entry) -> torch.Tensor:
        """The bytes of a tensor, uint8 [..., rows, bytes], rows in checkpoint order; mapped, or a
        copy where they had to be moved."""
        info = entry.info
        mapped = torch.from_file(  # private: nothing that is done to it reaches the file
            str(info.path), shared=False, size=info.offset + info.nbytes, dtype=torch.uint8
        )
        vector = len(info.shape) == 1  # whose numbers are moved as rows are
        shape = (*info.shape, info.kind.nbytes) if vector else (*info.shape[:-1], info.row_bytes)
        rows = mapped[info.offset :].view(shape)
        rows = rows.narrow(-2, entry.first, entry.shape[0 if vector else -2])
        # A quantized block lies within one row, so moving rows loses nothing.
        if entry.tensor.order is not None:
            rows = entry.tensor.order(rows)
        return undo_rope_permutation(rows, entry.heads) if entry.heads else rows

    def values(self, entry: Entry, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor as numbers of ``dtype``."""
        raw = self.raw(entry)
        make = entry.tensor.values
        rows = raw.reshape(-1, raw.shape[-1])
        wanted = torch.float32 if make else dtype
        numbers = blocks.dequantize(entry.kind, rows, self.file.order, wanted).view(entry.shape)
        if make is None:
            return numbers
        beside = [self.values(entry.beside)] if entry.beside else []
        return make(numbers, *beside).to(dtype)


def undo_rope_permutation(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Bring rows of a query or key projection from GGUF order back to checkpoint order.

    weight [num_heads * head_dim, any].  RoPE turns pairs of rows of each head: llama.cpp stores a
    pair as rows (2i, 2i + 1), a Hugging Face checkpoint as rows (i, i + head_dim / 2).
    """
    head_dim = weight.shape[0] // num_heads
    pairs = weight.reshape(num_heads, head_dim // 2, 2, -1)
    return pairs.transpose(1, 2).reshape(weight.shape)
