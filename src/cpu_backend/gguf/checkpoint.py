"""What a GGUF file is as a Hugging Face checkpoint: config.json and named tensors.

A model has all tensors of its architecture (``architectures``) and no others.  What llama.cpp has
changed is changed back: the order of rows, of Llama's query and key projections; tensors that are
one there and several here; and numbers, where an architecture says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from cpu_backend.gguf import blocks
from cpu_backend.gguf.architectures import find
from cpu_backend.gguf.architectures.tensors import JOINED, Tensor, joined, shape_of
from cpu_backend.gguf.reader import BlockType, GgufFile, TensorInfo


@dataclass(frozen=True)
class Entry:
    """A tensor of the checkpoint.

    info: in the file.  shape: here; fewer rows than there where it is a part, which begins at
    ``first``.  heads: within which its rows are interleaved, if not 0.  rows, columns: those of
    the file that are the checkpoint's, if they are others or in another order.  beside: what else
    its numbers are made of.  below: what follows after the last row.
    """

    info: TensorInfo
    tensor: Tensor
    shape: tuple[int, ...]
    first: int = 0
    heads: int = 0
    rows: np.ndarray | None = None
    columns: np.ndarray | None = None
    beside: Entry | None = None
    below: Entry | None = None

    @property
    def kind(self) -> BlockType:
        """Its type in the file."""
        return self.info.kind

    @property
    def as_numbers(self) -> bool:
        """Whether it is read as numbers, and not packed from the file's blocks."""
        return (
            len(self.shape) == 1
            or self.tensor.plain
            or self.tensor.values is not None
            or (self.below is not None and self.below.kind != self.kind)
            or (self.columns is not None and not blocks.groups_stay(self.kind, self.columns))
        )


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

    def of_module(self, module: str) -> Entry:
        """The weight of a module of the host; it may be one of several in a tensor."""
        name = f"{self.architecture.checkpoint_name(module)}.weight"
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
        matrices = [
            entry
            for entry in self.entries.values()
            if entry.info.name.startswith("blk.")
            and len(entry.shape) > 1
            and entry.tensor.values is None
        ]
        first = next((entry for entry in matrices if not entry.as_numbers), matrices[0])
        kind = first.kind.name
        return {"F32": "float32", "F16": "float16"}.get(kind, "bfloat16")

    # ---- tensors -----------------------------------------------------------------------------

    def _entries(self) -> dict[str, Entry]:
        entries = self._read(-1, "", self.architecture.outer())
        for layer in range(self.config["num_hidden_layers"]):
            entries |= self._read(layer, f"blk.{layer}.", self.architecture.layer(layer))
        for entry in entries.values():
            self._check_gate(entry)
        found = [
            part
            for entry in entries.values()
            for part in (entry, entry.below, entry.beside)
            if part is not None
        ]
        used = {entry.info.name for entry in found}
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
        name, _, second = name.partition("|")[0].partition("+")
        if second and (below := self._find(block, second, tensor, tensors, sizes)) is not None:
            above = self._find(block, name, tensor, tensors, sizes)
            if above is None or tensor.rows or tensor.columns:
                raise self.file.error(f"has no tensor '{block}{name}'", "choose a whole model")
            rows_of_both = above.shape[0] + below.shape[0]
            return replace(above, shape=(rows_of_both, *above.shape[1:]), below=below)
        shape = whole = shape_of(name, tensor, sizes)
        place, first = block + name, 0
        if place not in self.file.tensors and (longer := joined(place, self.file.tensors)):
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
        if same_rows(info, whole):
            info = replace(info, shape=whole)
        else:
            raise self.file.error(
                f"has the tensor '{place}' of shape {list(info.shape)} and "
                f"{list(whole)} is expected"
            )
        if len(shape) == 1 and info.kind.quantized:
            raise self.file.error(f"has the vector '{place}' in {info.kind.name}")
        heads = sizes[tensor.heads] if tensor.heads else 0
        chosen = tensor.rows(shape[0]) if tensor.rows else None
        columns = tensor.columns(shape[-1]) if tensor.columns else None
        if chosen is not None:
            shape = (len(chosen), *shape[1:])
        beside = None
        if tensor.beside:
            other, other_shape = tensor.beside
            beside = self._find(block, other, Tensor("", other_shape), tensors, sizes)
        return Entry(info, tensor, shape, first, heads, chosen, columns, beside)

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
        if entry.below is not None:
            return torch.cat([self.raw(part) for part in apart(entry)])
        info = entry.info
        mapped = torch.from_file(  # private: nothing that is done to it reaches the file
            str(info.path), shared=False, size=info.offset + info.nbytes, dtype=torch.uint8
        )
        vector = len(info.shape) == 1  # whose numbers are moved as rows are
        shape = (*info.shape, info.kind.nbytes) if vector else (*info.shape[:-1], info.row_bytes)
        rows = mapped[info.offset :].view(shape)
        # A quantized block lies within one row, so moving rows loses nothing.
        if entry.rows is not None:
            return rows[torch.from_numpy(entry.rows)]
        rows = rows.narrow(-2, entry.first, entry.shape[0 if vector else -2])
        if entry.tensor.loaded is not None:
            return torch.as_tensor(entry.tensor.loaded(rows))
        return undo_rope_permutation(rows, entry.heads) if entry.heads else rows

    def values(self, entry: Entry, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor as numbers of ``dtype``."""
        if entry.below is not None:
            return torch.cat([self.values(part, dtype) for part in apart(entry)])
        raw = self.raw(entry)
        make = entry.tensor.values
        rows = raw.reshape(-1, raw.shape[-1])
        wanted = torch.float32 if make else dtype
        numbers = blocks.dequantize(entry.kind, rows, self.file.order, wanted).view(entry.shape)
        if entry.columns is not None:
            numbers = numbers[..., torch.from_numpy(entry.columns)]
        if make is None:
            return numbers
        beside = [self.values(entry.beside)] if entry.beside else []
        return make(numbers, *beside).to(dtype)


def apart(entry: Entry) -> list[Entry]:
    """The two tensors of which one has another below it."""
    assert entry.below is not None
    rows = entry.shape[0] - entry.below.shape[0]
    return [replace(entry, shape=(rows, *entry.shape[1:]), below=None), entry.below]


def same_rows(info: TensorInfo, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of the file has this shape, but for sizes of 1, which llama.cpp moves."""
    found, wanted = ([size for size in s if size > 1] for s in (info.shape, shape))
    return found == wanted and (info.shape[-1] == shape[-1] or not info.kind.quantized)


def undo_rope_permutation(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Bring rows of a query or key projection from GGUF order back to checkpoint order.

    weight [num_heads * head_dim, any].  RoPE turns pairs of rows of each head: llama.cpp stores a
    pair as rows (2i, 2i + 1), a Hugging Face checkpoint as rows (i, i + head_dim / 2).
    """
    head_dim = weight.shape[0] // num_heads
    pairs = weight.reshape(num_heads, head_dim // 2, 2, -1)
    return pairs.transpose(1, 2).reshape(weight.shape)
