"""The innermost loop of every product, as the build compiles it for a target that may not be here:
what it costs for each multiply-add, and how fast models of CPUs run it.

    python -m benchmarks.instruction_counts neon_i8mm_bf16 [--cpu neoverse-v2 ...] [--save FILE]

Needs CMake, Ninja, the target's compiler (for 64-bit Arm aarch64-linux-gnu-g++) and llvm-mca.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.instruction_counts import model
from benchmarks.instruction_counts.assembly import CountError, Loop
from benchmarks.instruction_counts.products import Compiled, compiled, hot_loop
from tests.targets import TARGETS, Target


def per_cycle(target: Target, cpu: str, each: Compiled, loop: Loop) -> str:
    """Multiply-adds per cycle, and their share of those of the best instruction alone."""
    got = each.multiply_adds / model.cycles(target.architecture, cpu, loop.instructions)
    most = model.limit(target, cpu, each.product.kind)
    return f"{got:.1f} ({got / most:.0%})".replace("%", " %")


def row(target: Target, cpus: Sequence[str], each: Compiled, loop: Loop) -> list[str]:
    """A line of the table."""
    instructions, count = len(loop.instructions), each.multiply_adds
    return [
        f"{each.product.name}, {each.rows} {'row' if each.rows == 1 else 'rows'}",
        f"{each.rows} x {each.columns}",
        f"{instructions / count:.3f}",
        f"{loop.loads / count:.3f}, {loop.stores / count:.3f}",
        f"{instructions / each.weight_bytes:.2f}",
        *(per_cycle(target, cpu, each, loop) for cpu in cpus),
    ]


def table(target: Target, cpus: Sequence[str], assembly: str, kernels: list[Compiled]) -> str:
    """The table of a target's kernels, in Markdown."""
    heads = ["", "tile", "instructions", "loads, stores", "instructions per byte", *cpus]
    lines = [heads, ["---"] * len(heads)]
    for each in kernels:
        line = row(target, cpus, each, hot_loop(assembly, each))
        if line not in lines:  # of few registers several tiles are the same
            lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=[name for name in TARGETS if name in model.CPUS])
    parser.add_argument("--cpu", nargs="+", help="models, as llvm-mca names them")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the assembly there")
    options = parser.parse_args()
    try:
        target, cpus = TARGETS[options.target], options.cpu or model.CPUS[options.target]
        assembly, kernels = compiled(target)
        if options.save:
            options.save.write_text(assembly)
        text = table(target, cpus, assembly, kernels)
        print(f"{options.target}, LLVM {model.version()}: per multiply-add, and per byte of the")
        print("weight, without scales; multiply-adds per cycle, in brackets the share of what the")
        print(f"best instruction alone does\n\n{text}")
    except CountError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
