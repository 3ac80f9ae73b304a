"""What a GGUF file is as a Hugging Face checkpoint: config.json and named tensors.

A model has all tensors of its architecture (``architectures``) and no others; what it makes of
pictures is a file of its own (``projectors``).
"""

from __future__ import annotations

import re

from cpu_backend.gguf import projectors
from cpu_backend.gguf.architectures import find
from cpu_backend.gguf.architectures.tensors import Tensor
from cpu_backend.gguf.projectors import Projector
from cpu_backend.gguf.reader import GgufFile
from cpu_backend.gguf.weights import Entry, Weights


class Checkpoint(Weights):
    """A whole model in a GGUF file; raises ConfigError for anything that is not one.

    config: what config.json would say.  entries: the tensors under their Hugging Face names, the
    experts of a layer in one, [experts, rows, columns], with {} for the number; a tied output layer
    is not among them.  table, head: names of the embedding table and the output layer.
    """

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file)
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
        layers = range(self.config["num_hidden_layers"])
        entries = self._layer(-1, "", self.architecture.outer())
        for layer in layers:
            entries |= self._layer(layer, f"blk.{layer}.", self.architecture.layer(layer))
        for entry in entries.values():
            self._check_gate(entry)
        self.check_all_used(entries.values(), self.architecture.ignored)
        return entries

    def _layer(self, layer: int, block: str, tensors: dict[str, Tensor]) -> dict[str, Entry]:
        """The entries of a layer, or of what is outside of layers: -1."""
        prefix = self.architecture.prefix(layer) if layer >= 0 else ""
        if self.config["tie_word_embeddings"]:
            tensors = {name: t for name, t in tensors.items() if name != "output.weight"}
        return self.read(block, prefix, tensors, self.architecture.sizes(layer, self.config))

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


class Pictures(Weights):
    """What a model makes of pictures, in a file beside that of its text; raises ConfigError for one
    that does not fit ``text``.

    entries: under Hugging Face names, all read as numbers.  config: what config.json would say, but
    for the text.  processor: what processor_config.json would.
    """

    def __init__(self, file: GgufFile, text: Checkpoint) -> None:
        super().__init__(file)
        self.projector: Projector = projectors.find(file, text.architecture)
        sizes = self.projector.sizes()
        self.entries = self.read("", "", self.projector.outer(), sizes)
        for block, prefix, tensors in self.projector.blocks():
            self.entries |= self.read(block, prefix, tensors, sizes)
        self.check_all_used(self.entries.values(), self.projector.ignored)
        self.config = self.projector.config()
        self.processor = self.projector.processor()
        for field in self.projector.unread():
            raise self.projector.refuse(f"has the field '{field}'")
