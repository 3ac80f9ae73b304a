"""Llama Nemotron, and DeciLM before it: layers of different sizes, some without one half."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.llama import BIASES, Llama, interleaved
from cpu_backend.gguf.architectures.tensors import ATTENTION, FFN_NORM, MLP, Tensor

MODEL_TYPE = "nemotron-nas-gguf"  # ``configs`` has it


class Deci(Llama):
    """Llama Nemotron 49B, 51B and 253B, DeciLM 7B."""

    class_name = "DeciLMForCausalLM"
    model_type = MODEL_TYPE

    @property
    def num_heads(self) -> int:
        """Of the layers that attend."""
        counts = {count for count in self.per_layer("attention.head_count") if count}
        if len(counts) != 1:
            raise self.refuse("has layers with different numbers of heads")
        return counts.pop()

    def kv_heads(self) -> int:
        return max(self.per_layer("attention.head_count_kv"))

    def intermediate_size(self) -> int:
        return max(self.per_layer("feed_forward_length"))

    def groups(self, layer: int) -> int:
        """The key heads of a layer; 0 if it does not attend."""
        groups = self.per_layer("attention.head_count_kv")[layer]
        if not groups and self.per_layer("attention.head_count")[layer]:
            raise self.refuse("has layers with one matrix in place of their attention")
        if groups and self.num_heads % groups:
            raise self.file.error(f"has {self.num_heads} heads for {groups} of keys")
        return groups

    def ffn(self, layer: int) -> int:
        """The width of a layer's feed-forward part; 0 if it has none."""
        return self.per_layer("feed_forward_length")[layer]

    def config(self) -> dict[str, Any]:
        return super().config() | {"block_configs": list(map(self.block, range(self.num_layers)))}

    def block(self, layer: int) -> dict[str, Any]:
        """The host's words for the halves of a layer."""
        groups, width = self.groups(layer), self.ffn(layer)
        attention = {"n_heads_in_group": self.num_heads // groups} if groups else {}
        feed_forward = {"intermediate_size": width} if width else {}
        return {
            "attention": {"no_op": not groups, **attention},
            "ffn": {"no_op": not width, **feed_forward},
        }

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        own = {"num_key_value_heads": self.groups(layer), "intermediate_size": self.ffn(layer)}
        return super().sizes(layer, config | own)

    def layer(self, number: int) -> dict[str, Tensor]:
        attention = ATTENTION if self.groups(number) else {}
        tensors = attention | (FFN_NORM | MLP if self.ffn(number) else {})
        halves = tuple({name.split("_")[0] for name in tensors})
        biases = {name: bias for name, bias in BIASES.items() if name.startswith(halves)}
        return interleaved(tensors | biases)


KNOWN = {"deci": Deci}
