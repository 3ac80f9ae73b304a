"""Loops in a compiler's assembly of 64-bit Arm or x86, and what their instructions do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

LABEL = re.compile(r"(\.?[\w$.]+):")
INSTRUCTION = re.compile(r"\t((?:\{vex\} )?[a-z][\w.]*)(?:\s+(.*))?$")
BRANCH = re.compile(r"(?:b|b\.?[a-z]{2}|cbn?z|tbn?z|j[a-z]+)\t(?:.*, )?(\.?[\w$.]+)$")


class CountError(Exception):
    """What was asked for is not in the assembly, or a program that counts cannot be had."""


# What the numbers are that are multiplied.
FP32, BF16, INT8, INT16 = "fp32", "bf16", "int8", "int16"
# How much a multiply-add of one kind is worth to a product of another: a number of 16 bits is two
# of 8.
WORTH = {
    FP32: {FP32: 1.0},
    BF16: {BF16: 1.0, FP32: 1.0},
    INT8: {INT8: 1.0, INT16: 1.0},
    INT16: {INT16: 1.0, INT8: 0.5},
}


@dataclass(frozen=True)
class Multiply:
    """Instructions of one ``kind`` that do ``per_byte`` multiply-adds for each byte of their
    result.  CPUs with ``feature`` (csrc/dispatch/targets.def) have them.  ``alone`` is one for
    operands that nothing else writes, with the number of its result in place of ``{}``."""

    names: str
    kind: str
    per_byte: float
    feature: str
    alone: str

    def count(self, instruction: str) -> float:
        """Multiply-adds of an instruction, 0 if it is none of these."""
        name, _, operands = instruction.partition("\t")
        if not re.fullmatch(self.names, name):
            return 0.0
        if wide := re.findall(r"%([xyz])mm\d+", operands):
            return self.per_byte * {"x": 16, "y": 32, "z": 64}[wide[-1]]
        return self.per_byte * 16 if operands.startswith("v") else 0.0


MULTIPLIES = (
    Multiply("fml[as]", FP32, 1 / 4, "", "fmla v{}.4s, v30.4s, v31.4s"),
    Multiply("bfmmla", BF16, 1, "bf16", "bfmmla v{}.4s, v30.8h, v31.8h"),
    Multiply("bfdot", BF16, 1 / 2, "bf16", "bfdot v{}.4s, v30.8h, v31.8h"),
    Multiply("[su]s?mmla", INT8, 2, "i8mm", "usmmla v{}.4s, v30.16b, v31.16b"),
    Multiply("usdot", INT8, 1, "i8mm", "usdot v{}.4s, v30.16b, v31.16b"),
    Multiply("[su]dot", INT8, 1, "asimddp", "sdot v{}.4s, v30.16b, v31.16b"),
    Multiply("[su]mlal2?", INT16, 1 / 4, "", "smlal v{}.4s, v30.4h, v31.4h"),
    Multiply("[su]mull2?", INT16, 1 / 4, "", "smull v{}.4s, v30.4h, v31.4h"),
    Multiply("mla|mul", INT16, 1 / 4, "", "mla v{}.4s, v30.4s, v31.4s"),
    Multiply("vfn?m(add|sub)[123]{3}ps", FP32, 1 / 4, "fma", "vfmadd231ps %mm14, %mm15, %mm{}"),
    Multiply("vdpbf16ps", BF16, 1 / 2, "avx512_bf16", "vdpbf16ps %mm14, %mm15, %mm{}"),
    Multiply("vpdpbusd", INT8, 1, "avx512_vnni", "vpdpbusd %mm14, %mm15, %mm{}"),
    Multiply("vpdpwssd", INT16, 1 / 2, "avx512_vnni", "vpdpwssd %mm14, %mm15, %mm{}"),
    Multiply(r"\{vex\} vpdpbusd", INT8, 1, "avx_vnni", "{{vex}} vpdpbusd %mm14, %mm15, %mm{}"),
    Multiply(r"\{vex\} vpdpwssd", INT16, 1 / 2, "avx_vnni", "{{vex}} vpdpwssd %mm14, %mm15, %mm{}"),
    Multiply("vpmaddubsw", INT8, 1, "avx2", "vpmaddubsw %mm14, %mm15, %mm{}"),
    Multiply("vpmaddwd", INT16, 1 / 2, "avx2", "vpmaddwd %mm14, %mm15, %mm{}"),
)


def multiply_adds(instruction: str, kind: str) -> float:
    """How many of a product of this kind the instruction does."""
    worth = WORTH[kind]
    return sum(worth.get(each.kind, 0.0) * each.count(instruction) for each in MULTIPLIES)


def alone(kind: str, features: frozenset[str]) -> list[list[str]]:
    """Independent instructions, for each of those that CPUs with these features have and that a
    product of this kind can be made of."""
    x86 = "avx2" in features
    wide = "%zmm" if "avx512f" in features else "%ymm"
    texts = [
        each.alone.replace("%mm", wide).replace(" v", "\tv", 1).replace(" %", "\t%", 1)
        for each in MULTIPLIES
        if each.kind in WORTH[kind]
        and ("%mm" in each.alone) == x86
        and each.feature in features | {""}
    ]
    return [[text.format(number) for number in range(12 if x86 else 24)] for text in texts]


@dataclass(frozen=True)
class Loop:
    """The instructions of one turn, each its name, a tab and its operands."""

    instructions: tuple[str, ...]

    def multiply_adds(self, kind: str) -> float:
        return sum(multiply_adds(each, kind) for each in self.instructions)

    @property
    def loads(self) -> int:
        return self._number(_is_load)

    @property
    def stores(self) -> int:
        return self._number(_is_store)

    def _number(self, is_one: Callable[[str], bool]) -> int:
        return sum(map(is_one, self.instructions))


def _is_load(instruction: str) -> bool:
    name, _, operands = instruction.partition("\t")
    if "%" not in operands:
        return name.startswith("ld")
    reads = "(" in operands and not name.startswith(("prefetch", "lea"))
    return reads and not _is_store(instruction)


def _is_store(instruction: str) -> bool:
    name, _, operands = instruction.partition("\t")
    if "%" not in operands:
        return name.startswith("st")
    return "mov" in name and operands.endswith(")")


def function_lines(assembly: str, name: str) -> list[str]:
    """The lines of a function; CountError if it is not there."""
    found = re.search(
        rf"^{re.escape(name)}:\n(.*?)^\t\.size\t{re.escape(name)},", assembly, re.M | re.S
    )
    if found is None:
        raise CountError(f"the assembly has no function {name}")
    return found[1].splitlines()


def innermost_loops(lines: list[str]) -> list[Loop]:
    """Loops of a function without a loop in them: what lies between a label and the branch back to
    it."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in lines:
        if label := LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := INSTRUCTION.match(line):
            instructions.append(f"{found[1]}\t{(found[2] or '').strip()}")
    ranges = {
        (labels[branch[1]], place + 1)
        for place, instruction in enumerate(instructions)
        if (branch := BRANCH.match(instruction)) and labels.get(branch[1], place + 1) <= place
    }
    return [
        Loop(tuple(instructions[begin:end]))
        for begin, end in sorted(ranges)
        if not any(
            begin <= other and last <= end and (other, last) != (begin, end)
            for other, last in ranges
        )
    ]
