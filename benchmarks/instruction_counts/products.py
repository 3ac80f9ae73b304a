"""The products that are counted, and their kernels as the build compiles them for a target."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.instruction_counts.assembly import (
    BF16,
    FP32,
    INT8,
    INT16,
    CountError,
    Loop,
    function_lines,
    innermost_loops,
)
from tests.targets import Target

ROOT = Path(__file__).resolve().parents[2]
HEADERS = ("kernels/attention.h", "kernels/gemm.h")
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


@dataclass(frozen=True)
class Product:
    """``rows`` of activations by ``panels`` of a weight, both in C++, as are ``{rows}`` and
    ``{panels}`` of the ``function`` whose loop does it."""

    name: str
    kind: str  # of activations, and of what they meet
    weight_bits: float
    function: str
    rows: str
    panels: str
    channels: str  # that a turn of the loop takes
    arm: str = ""  # feature without which plain vectors do it on Arm, in loops of no fixed form


def _floats(left: str, right: str, scales: str = "Unscaled") -> str:
    return (
        f"multiply_tile<Fetch::kInBursts, Left<{left}>, {right}, {{rows}}, kPanelVecs, {{panels}}, "
        f"Ahead, {scales}>"
    )


def _codes(bits: int, quads: str) -> str:
    return f"integer_tile<RegisterTile<{bits}, {quads}, {{rows}}, {{panels}}>>"


# In blocks two pairs go together, in pairs each is a turn.
_PAIRS = "kInBlocks<Left<bf16_t>> || kPairing<bf16_t> == 1 ? 4 : 2"
_STEP = "QuantLayout::kStep"
# Where planes of bytes need sums of their own, half of many rows at a time.
_PART = "QuantLayout::kStep / (kHasPlanes && {rows} > kMaxRows / 2 ? 2 : 1)"
# Where sums of quads are of 16 bits, as many as they hold.
_CHAIN = "kSame<QuadSum, VecI> ? QuantLayout::kStep : kQuadChain * 4"
_CACHE = "multiply_integers<{rows}, kPanelVecs, {panels}>"
PRODUCTS = (
    *(
        Product(name, kind, bits, _floats(type_name, type_name), rows, panels, channels)
        for name, type_name, kind, bits, channels in (
            ("fp32", "float", FP32, 32, "4"),
            ("fp16", "fp16_t", FP32, 16, "4"),
            ("bf16", "bf16_t", BF16, 16, _PAIRS),
        )
        for rows, panels in (("kMaxRows", "1"), ("1", "4"))
    ),
    *(
        Product("bf16 x fp8", BF16, 8, _floats("bf16_t", "fp8_t", "ColumnScales"), *shape, _PAIRS)
        for shape in (("kFewRows", "kMaxRows == 12 ? 2 : 1"), ("1", "2"))
    ),
    *(
        Product(f"{name} x int{bits}", kind, bits, _codes(bits, quads), *shape, channels, arm)
        for name, kind, bits, quads, side_by_side, channels, arm in (
            ("int8", INT8, 8, "kQuads8", "kQuads8 ? 4 : 1", _STEP, "asimddp"),
            ("int8", INT8, 4, "true", "kQuads8 ? 4 : 1", _CHAIN, "asimddp"),
            ("int16", INT16, 8, "false", "4", _PART, ""),
            ("int16", INT16, 4, "false", "4", _PART, ""),
        )
        for shape in (("kQuantRows", "1"), ("4", "1"), ("1", side_by_side))
    ),
    *(
        Product("int16 x int8 cache", INT16, 8, _CACHE, rows, panels, "kIntegerSteps")
        for rows, panels in (
            ("kHasPlanes ? kIntegerRows : kMaxRows == 12 ? 8 : 4", "1"),
            ("4", "kIntegerRows == 12 ? 2 : 1"),
            ("1", "4"),
        )
    ),
)


@dataclass(frozen=True)
class Compiled:
    """A product's kernel: its tile, and the function's name in the assembly."""

    product: Product
    function: str
    rows: int
    columns: int
    channels: int  # in a turn of its loop

    @property
    def multiply_adds(self) -> int:
        """In a turn."""
        return self.rows * self.columns * self.channels

    @property
    def weight_bytes(self) -> float:
        """That a turn reads, without scales."""
        return self.columns * self.channels * self.product.weight_bits / 8


def hot_loop(assembly: str, kernel: Compiled) -> Loop:
    """The shortest innermost loop that does the kernel's multiply-adds in a turn, and some more
    where sums need them, but twice as many at most.  Others are what is left over, or do the same
    with more around it.  CountError: there is none."""
    kind, needed = kernel.product.kind, kernel.multiply_adds
    loops = innermost_loops(function_lines(assembly, kernel.function))
    hot = [loop for loop in loops if needed <= loop.multiply_adds(kind) <= 2 * needed]
    if not hot:
        found = ", ".join(f"{loop.multiply_adds(kind):g}" for loop in loops) or "no loop"
        raise CountError(
            f"no loop of {kernel.product.name} with {kernel.rows} rows and {kernel.columns} columns"
            f" does {needed} multiply-adds in a turn, but {found}: see {kernel.function}"
        )
    return min(hot, key=lambda loop: len(loop.instructions))


def _entry(each: Product) -> str:
    shape = {"rows": each.rows, "panels": each.panels}
    function, channels = each.function.format(**shape), each.channels.format(**shape)
    columns = f"({each.panels}) * kPanelWidth"
    return f"    {{(const void*)&{function}, {each.rows}, {columns}, {channels}}},"


def source() -> str:
    """A translation unit that has the kernels of all products and a list of them, in order."""
    return "\n".join(
        [
            *(f'#include "{header}"' for header in HEADERS),
            "namespace CPU_BACKEND_NAMESPACE {",
            "struct Counted { const void* function; int rows, columns, channels; };",
            'extern "C" const Counted counted[] __attribute__((visibility("default"))) = {',
            *map(_entry, PRODUCTS),
            "};",
            "}",
            "",
        ]
    )


def command(target: Target, folder: Path) -> list[str]:
    """How the build compiles the kernels of a target, up to the names of files.  CountError: it
    does not, or what it needs is missing."""
    cross = ["--toolchain", str(ROOT / "tools" / f"{target.architecture}.cmake")]
    configure = [
        *("cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja"),
        *("-DCPU_BACKEND_OPS=OFF", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"),
        *([] if target.architecture in ("", platform.machine()) else cross),
    ]
    run(configure)
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        if f"-DCPU_BACKEND_TARGET={target.name}" in words:
            return words[: words.index("-o")]
    raise CountError(f"the build for {platform.machine()} has no target {target.name}")


def run(words: list[str], text: str = "") -> str:
    """What a program prints, given a text.  CountError: it is missing, or says that it failed."""
    program = shutil.which(words[0], path=PATH)
    if program is None:
        raise CountError(f"{words[0]} is not installed: .ci/install_packages brings it")
    done = subprocess.run([program, *words[1:]], input=text, capture_output=True, text=True)
    if done.returncode:
        raise CountError(f"{words[0]} failed: {done.stderr.strip()}")
    return done.stdout


def compiled(target: Target) -> tuple[str, list[Compiled]]:
    """The assembly of all products' kernels for a target, and where each is."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "counted.cpp").write_text(source())
        words = command(target, folder)
        assembly = run([*words, "-S", "-o", "-", str(folder / "counted.cpp")])
    entry = r"\t\.(?:xword|quad)\t(\w+)\n" + 3 * r"\t\.(?:word|long)\t(\d+)\n"
    found = re.findall(entry, assembly.partition("\ncounted:\n")[2])
    return assembly, [
        Compiled(product, function, *map(int, shape))
        for product, (function, *shape) in zip(PRODUCTS, found, strict=True)
        if target.architecture != "aarch64" or product.arm in target.features | {""}
    ]
