"""Seconds of one step of a dense decoder, by what spends them.

A step of decoding reads every weight and the requests' cache once; a prompt multiplies every weight
with every token.  Both are cut over the cores of a rank and over tensor-parallel ranks.  What is
not cut, or grows: the host's Python around the step, single loops that one thread runs, the
barriers between the threads of a rank, and the sums over ranks.

Not in the model: clocks that fall when all cores work, page tables and links between sockets (a
rank's memory is its node's), caches that hold weights, and uneven splits of heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from benchmarks.compare.models import Shape

BYTES = 2  # bf16
# Of one decoder layer in a replayed step: edges where the threads of a rank meet (norm, qkv, rotary
# and cache, attention, output, norm, gate-up, down), loops that one thread runs alone on one row,
# and sums over the ranks (after attention and after the MLP).
BARRIERS_PER_LAYER = 8
BARRIER_GROUP = 8  # csrc/core/barrier.h
SERIAL_LOOPS_PER_LAYER = 4
SUMS_PER_LAYER = 2


@dataclass(frozen=True)
class Decoder:
    """A decoder of the Llama family; sizes in elements, from its published configuration."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    def linears(self) -> list[tuple[int, int]]:
        """(out_features, in_features) of one layer."""
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return [
            (query + 2 * kv, self.hidden),
            (self.hidden, query),
            (2 * self.intermediate, self.hidden),
            (self.hidden, self.intermediate),
        ]

    @property
    def shape(self) -> Shape:
        return Shape.of(
            {
                "hidden_size": self.hidden,
                "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads,
                "head_dim": self.head_dim,
                "intermediate_size": self.intermediate,
                "vocab_size": self.vocabulary,
            }
        )


MODELS = {
    # With 12 and 4 heads instead of 9 and 3, as two ranks need them.
    "SmolLM2-135M": Decoder(30, 576, 1536, 12, 4, 64, 49152),
    "Llama-3.2-1B": Decoder(16, 2048, 8192, 32, 8, 64, 128256),
    "Llama-3.1-8B": Decoder(32, 4096, 14336, 32, 8, 128, 128256),
}


@dataclass(frozen=True)
class Node:
    """What a rank runs on, in bytes/s and bf16 operations/s."""

    cores: int
    bytes_per_s: float
    core_bytes_per_s: float
    core_flop_per_s: float


@dataclass(frozen=True)
class Costs:
    """What is measured once and taken along to other machines.  Times in seconds.

    ``read_share`` and ``flop_share``: parts of the limits that linear layers reach.
    """

    read_share: float
    flop_share: float
    # Around a step, however many cores: scheduling, sampling, messages between processes.
    decode_overhead: float
    prompt_overhead: float
    ranks_overhead: float  # more of it as soon as a step runs on several ranks
    eager_layer: float  # Python of one layer of a prompt; decode steps are replayed without
    serial_loop: float
    barrier_turn: float  # threads of a group, and then groups, take turns at a counter
    meeting: float  # a sum over two ranks, next to no data
    meeting_rank: float  # each further rank
    sum_bytes_per_s: float  # of large sums, per thread of a rank

    @classmethod
    def of(cls, inputs: dict[str, Any], family: str) -> Costs:
        """From probe.py's figures; ``family`` is the model whose linear layers were measured."""
        most = str(inputs["cores"])
        one, all_cores = inputs["kernels"]["1"], inputs["kernels"][most]
        # Of one thread: two would wait for each other wherever another program takes a core.
        linear = one["linear"][family]
        barrier = max(
            0.0, all_cores["loop"]["shared_s"] - one["loop"]["shared_s"] / inputs["cores"]
        )
        sums = {row["bytes"]: row["ours_us"] * 1e-6 for row in inputs["ranks"]["all_reduce"]}
        small, large = min(sums), max(sums)
        toy = inputs["toy"][f"{most} cores"]
        step = 1 / toy["decode_tokens_per_s"]
        prompt = toy["prompt_tokens"] / toy["prompt_tokens_per_s"]
        serial = one["loop"]["serial_s"]
        layers = inputs["toy_layers"]
        barriers = layers * BARRIERS_PER_LAYER * barrier
        loops = layers * SERIAL_LOOPS_PER_LAYER * serial
        overhead = max(0.0, step - barriers - loops)
        ranks = 1 / inputs["toy"]["tp 2"]["decode_tokens_per_s"] - overhead - loops
        return cls(
            read_share=min(1.0, linear["read_bytes_per_s"] / one["read_bytes_per_s"]),
            flop_share=linear["flop_per_s"] / one["flop_per_s"] / bf16_gain(inputs),
            decode_overhead=overhead,
            prompt_overhead=overhead,
            ranks_overhead=max(0.0, ranks - layers * SUMS_PER_LAYER * sums[small]),
            eager_layer=max(0.0, (prompt - overhead) / layers),
            serial_loop=serial,
            barrier_turn=barrier / barrier_turns(inputs["cores"]),
            meeting=sums[small],
            meeting_rank=sums[small] / 2,
            sum_bytes_per_s=(large - small) / (sums[large] - sums[small]),
        )


def bf16_gain(inputs: dict[str, Any]) -> int:
    """bf16 operations of the measured machine per fp32 operation.

    More than one with units for bf16: the least that explains the rate of its linear layers.
    """
    one = inputs["kernels"]["1"]
    return math.ceil(max(rate["flop_per_s"] for rate in one["linear"].values()) / one["flop_per_s"])


def barrier_turns(threads: int) -> int:
    """So many threads after the first have to count, one after the other, before all may go on."""
    return min(threads, BARRIER_GROUP) - 1 + -(-threads // BARRIER_GROUP) - 1


@dataclass(frozen=True)
class Prediction:
    """Seconds of one step.  ``parts`` add up; a name says what spends them."""

    parts: dict[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def bound(self) -> str:
        return max(self.parts, key=lambda name: self.parts[name])


def work(node: Node, costs: Costs, cores: int, read: float, flop: float) -> tuple[str, float]:
    """The slower of reading and multiplying, by the cores of one rank."""
    bandwidth = min(cores * node.core_bytes_per_s, node.bytes_per_s)
    reading = read / (bandwidth * costs.read_share)
    multiplying = flop / (cores * node.core_flop_per_s * costs.flop_share)
    if multiplying > reading:
        return "multiply-adds", multiplying
    return ("memory" if bandwidth == node.bytes_per_s else "cores' reads"), reading


def decode(
    node: Node,
    costs: Costs,
    model: Decoder,
    cores: int,
    ranks: int = 1,
    requests: int = 1,
    context: float = 128,
) -> Prediction:
    """A step that gives each of ``requests`` one token; every rank has ``cores`` of a node."""
    shape = model.shape
    weights = shape.layer_weights + shape.head_weights
    read = weights * BYTES + requests * context * shape.kv_elements * BYTES
    flop = requests * (2 * weights + context * shape.attention_flop)
    name, seconds = work(node, costs, cores, read / ranks, flop / ranks)
    parts = {
        name: seconds,
        "host": costs.decode_overhead,
        "single thread": model.layers * SERIAL_LOOPS_PER_LAYER * costs.serial_loop * requests,
    }
    return Prediction(parts | meetings(costs, model, cores, ranks, requests))


def prompt(
    node: Node, costs: Costs, model: Decoder, cores: int, ranks: int = 1, tokens: int = 1024
) -> Prediction:
    """A prompt in one step; only its last token needs logits."""
    shape = model.shape
    read = (shape.layer_weights + shape.head_weights) * BYTES
    flop = 2 * (tokens * shape.layer_weights + shape.head_weights)
    flop += shape.attention_flop * tokens * (tokens + 1) // 2
    name, seconds = work(node, costs, cores, read / ranks, flop / ranks)
    parts = {
        name: seconds,
        "host": costs.prompt_overhead + model.layers * costs.eager_layer,
    }
    return Prediction(parts | meetings(costs, model, cores, ranks, tokens))


def meetings(costs: Costs, model: Decoder, cores: int, ranks: int, tokens: int) -> dict[str, float]:
    """Barriers between the threads of a rank, and sums over the ranks."""
    barriers = model.layers * BARRIERS_PER_LAYER * barrier_turns(cores)
    parts = {"barriers": barriers * costs.barrier_turn}
    if ranks > 1:
        meeting = costs.meeting + (ranks - 2) * costs.meeting_rank
        data = tokens * model.hidden * BYTES / (cores * costs.sum_bytes_per_s)
        parts["sums over ranks"] = model.layers * SUMS_PER_LAYER * (meeting + data)
        parts["several ranks"] = costs.ranks_overhead
    return parts
