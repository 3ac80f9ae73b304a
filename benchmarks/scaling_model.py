"""From figures of one core to the speed of a server: tokens per second for 1 to 256 cores.

    python benchmarks/scaling_model.py [--model 8B] [--nodes 1 2 4 8] [--cores 1 2 ... 256]

A step of decoding reads every weight once; a prompt multiplies every weight with every token.
Both are cut over the cores of a NUMA node and, with tensor parallelism, over nodes; what is not
cut is the step's own overhead, the barriers between threads and the meetings between ranks.  The
defaults are the figures of docs/scaling.md: per-core ones measured, a node's memory from its data
sheet.  The name after each figure says what bounds it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

GB = 1e9


@dataclass(frozen=True)
class Model:
    """Sizes of a dense decoder; bytes per weight 2 is bf16, 0.53 is int4 with scales."""

    weights: float
    layers: int
    hidden: int
    bytes_per_weight: float = 2.0


MODELS = {
    "135M": Model(135e6, 30, 576),
    "1B": Model(1.24e9, 16, 2048),
    "8B": Model(8.0e9, 32, 4096),
    "8B int4": Model(8.0e9, 32, 4096, 0.53),
    "70B int4": Model(70.6e9, 80, 8192, 0.53),
}


@dataclass(frozen=True)
class Machine:
    """Measured per core: bytes/s read, operations/s, seconds.  Given per node: bytes/s."""

    core_bandwidth: float = 16 * GB
    core_flops: float = 85 * GB
    node_bandwidth: float = 230 * GB
    # Per step: scheduler, sampling, the host's Python; not shortened by cores.
    step_overhead: float = 0.004
    # Per layer four loops end in a barrier; its time grows with the logarithm of the threads.
    barrier: float = 0.4e-6
    barriers_per_layer: int = 6
    # A meeting of two ranks, and of each further one; and the bytes/s of large sums.
    meeting: float = 4e-6
    meeting_more: float = 1e-6
    sum_bandwidth: float = 4 * GB


@dataclass(frozen=True)
class Prediction:
    """Seconds of one step by what spends them."""

    parts: dict[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def bound(self) -> str:
        return max(self.parts, key=lambda name: self.parts[name])


def step(machine: Machine, model: Model, cores: int, nodes: int, tokens: int) -> Prediction:
    """One step of ``tokens`` tokens on ``nodes`` ranks of ``cores // nodes`` cores each."""
    each = cores // nodes
    read = model.weights * model.bytes_per_weight / nodes
    bandwidth = min(each * machine.core_bandwidth, machine.node_bandwidth)
    compute = 2 * model.weights * tokens / nodes / (each * machine.core_flops)
    name = "memory" if bandwidth == machine.node_bandwidth else "cores' bandwidth"
    work = {name: read / bandwidth} if read / bandwidth > compute else {"arithmetic": compute}
    log_threads = each.bit_length() - 1
    parts = {
        **work,
        "overhead": machine.step_overhead,
        "barriers": model.layers * machine.barriers_per_layer * machine.barrier * log_threads,
    }
    if nodes > 1:
        # Two sums per layer.  The machine is split in its ranks' copies: each adds 1/n and reads.
        meeting = machine.meeting + (nodes - 2) * machine.meeting_more
        data = tokens * model.hidden * 2 / machine.sum_bandwidth
        parts["sums over ranks"] = 2 * model.layers * (meeting + data)
    return Prediction(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="8B")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument(
        "--cores", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 192, 256]
    )
    parser.add_argument("--prompt", type=int, default=1024)
    for name, default in vars(Machine()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    options = parser.parse_args()
    machine = Machine(**{name: getattr(options, name) for name in vars(Machine())})
    model = MODELS[options.model]
    print(f"{options.model}: tokens/s of one request, tokens/s of a {options.prompt}-token prompt")
    print("cores " + "".join(f"{f'{n} node(s)':>46}" for n in options.nodes))
    for cores in options.cores:
        row = f"{cores:5} "
        for nodes in options.nodes:
            if cores < nodes:
                row += " " * 46
                continue
            decode = step(machine, model, cores, nodes, 1)
            prompt = step(machine, model, cores, nodes, options.prompt)
            row += f"{1 / decode.seconds:8.1f} {decode.bound:<16}"
            row += f"{options.prompt / prompt.seconds:8,.0f} {prompt.bound:<12}"
        print(row.rstrip())


if __name__ == "__main__":
    main()
