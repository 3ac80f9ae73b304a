"""The pieces of work, how they are written on the command line, and what bounds them.

| written | work | value |
| --- | --- | --- |
| ``decode:32:256`` | one request of 32 tokens, 256 out | tokens/s after the first token |
| ``prompt:1024`` | one prompt, one token out | prompt tokens/s |
| ``batch:64:128:128`` | 64 requests at once, 128 tokens in and out each | output tokens/s |
| ``http:32:128:64`` | the same through the server, by `vllm bench serve` | output tokens/s |

The bound of a work is what the machine's read bandwidth and fp32 multiply-add peak allow for the
model's shape, with no other cost at all: every weight is read once per step and multiplied once per
token. Units with more than the fp32 peak (VNNI, AMX) may exceed it, and a share says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from benchmarks.compare.models import Shape

# Bytes per weight as stored; the blocks of 8 and 4 bits, and groups of 64, carry their scales.
WEIGHT_BYTES = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "int8": 34 / 32,
    "int4": 18 / 32,
    "gguf": 20 / 32,  # Q4_1
    "w8a8": 1.0,
    "awq": 0.5 + 2.5 / 64,
    "gptq": 0.5 + 2 / 64,
}


@dataclass(frozen=True)
class Limits:
    """What one probe of the machine gave."""

    bytes_per_s: float
    flop_per_s: float


@dataclass(frozen=True)
class Work:
    kind: str
    sizes: tuple[int, ...]

    # Names of the sizes, and how often the work is repeated in one process of one round.
    KINDS: ClassVar[dict[str, tuple[tuple[str, ...], int]]] = {
        "decode": (("inputs", "outputs"), 2),
        "prompt": (("inputs",), 3),
        "batch": (("requests", "inputs", "outputs"), 1),
        "http": (("requests", "inputs", "outputs"), 1),
    }

    @classmethod
    def parse(cls, text: str) -> Work:
        """Raises ValueError with a sentence."""
        kind, *numbers = text.split(":")
        if kind not in cls.KINDS:
            raise ValueError(f"'{text}' is no work: begin with one of {', '.join(cls.KINDS)}")
        names, _ = cls.KINDS[kind]
        usable = len(numbers) == len(names) and all(n.isdecimal() and int(n) > 0 for n in numbers)
        if not usable:
            raise ValueError(f"'{text}' is no work: write {':'.join((kind, *names))} in numbers")
        work = cls(kind, tuple(int(number) for number in numbers))
        if kind == "decode" and work.sizes[1] < 2:
            raise ValueError(f"'{text}' decodes nothing: ask for two tokens or more")
        return work

    def __str__(self) -> str:
        return ":".join((self.kind, *map(str, self.sizes)))

    @property
    def title(self) -> str:
        return {
            "decode": "one request, {} tokens in, {} out: decode tokens/s",
            "prompt": "prompt of {} tokens: prompt tokens/s",
            "batch": "{} requests of {} in, {} out at once: output tokens/s",
            "http": "{} requests of {} in, {} out over HTTP: output tokens/s",
        }[self.kind].format(*self.sizes)

    @property
    def repeats(self) -> int:
        return self.KINDS[self.kind][1]

    @property
    def is_served(self) -> bool:
        return self.kind == "http"

    @property
    def context(self) -> int:
        """Tokens of the longest sequence."""
        return self.sizes[-1] + self.sizes[-2] if len(self.sizes) > 1 else self.sizes[0] + 1

    def bound(self, shape: Shape, dtype: str, limits: Limits) -> float:
        """The best value that the limits allow for weights of ``dtype``."""
        if self.kind == "decode":
            inputs, outputs = self.sizes
            return 1 / step_seconds(shape, dtype, limits, 1, inputs + outputs / 2)
        if self.kind == "prompt":
            (inputs,) = self.sizes
            return inputs / prompt_seconds(shape, limits, inputs)
        requests, inputs, outputs = self.sizes
        step = step_seconds(shape, dtype, limits, requests, inputs + outputs / 2)
        seconds = requests * prompt_seconds(shape, limits, inputs) + (outputs - 1) * step
        return requests * outputs / seconds


def prompt_seconds(shape: Shape, limits: Limits, inputs: int) -> float:
    """Multiply-adds of one causal prompt; only its last token needs logits."""
    linear = 2 * (inputs * shape.layer_weights + shape.head_weights)
    attention = shape.attention_flop * inputs * (inputs + 1) / 2
    return (linear + attention) / limits.flop_per_s


def step_seconds(shape: Shape, dtype: str, limits: Limits, requests: int, context: float) -> float:
    """One decoding step: the slower of reading weights and cache, and of multiplying."""
    weights = shape.layer_weights + shape.head_weights
    # Caches of quantized models are of 16 bits.
    cache_bytes = shape.kv_elements * max(2.0, WEIGHT_BYTES[dtype])
    read = weights * WEIGHT_BYTES[dtype] + requests * context * cache_bytes
    flop = requests * (2 * weights + shape.attention_flop * context)
    return max(read / limits.bytes_per_s, flop / limits.flop_per_s)
