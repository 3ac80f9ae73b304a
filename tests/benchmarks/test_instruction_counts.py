"""Counting the kernels' innermost loops: what must hold whatever the compiler makes of them."""

from __future__ import annotations

import pytest

from benchmarks.instruction_counts import model
from benchmarks.instruction_counts.__main__ import table
from benchmarks.instruction_counts.assembly import (
    BF16,
    FP32,
    INT8,
    INT16,
    CountError,
    alone,
    function_lines,
    innermost_loops,
    multiply_adds,
)
from benchmarks.instruction_counts.products import Compiled, compiled, hot_loop
from tests.targets import TARGETS

TARGET = TARGETS["neon_i8mm_bf16"]

# A loop over a step of four sums within one over two rows, and what is left over behind it.
NESTED = """
other:
\tret
\t.size\tother, .-other
product:
.LFB1:
\tmov\tx3, 0
.L2:
\tldr\tx4, [x0, x3]
.L3:
\tldp\tq0, q1, [x1], 32
\tprfm\tPLDL2KEEP, [x1, 512]
\tcbz\tx5, .L4
\tusmmla\tv2.4s, v0.16b, v4.16b
\tsmull2\tv3.4s, v0.8h, v1.8h
.L4:
\tstr\tq2, [sp, 16]
\tsubs\tx2, x2, #1
\tbne\t.L3
\tadd\tx3, x3, 8
\tcmp\tx3, 16
\tb.lt\t.L2
.L5:
\tfmla\tv2.4s, v0.4s, v1.s[0]
\tfmadd\ts2, s0, s1, s3
\tb\t.L5
\t.size\tproduct, .-product
"""


def test_a_loop_is_what_lies_between_a_label_and_the_branch_back_to_it() -> None:
    inner, rest = innermost_loops(function_lines(NESTED, "product"))
    assert [line.split()[0] for line in inner.instructions] == [
        *("ldp", "prfm", "cbz", "usmmla", "smull2", "str", "subs", "bne")
    ]
    assert (inner.loads, inner.stores) == (1, 1)
    assert inner.multiply_adds(INT8) == 2 * 2 * 8 + 4
    assert inner.multiply_adds(INT16) == 2 * 2 * 8 / 2 + 4
    assert rest.multiply_adds(FP32) == 4  # not the scalar one
    assert innermost_loops(function_lines(NESTED, "other")) == []
    with pytest.raises(CountError, match="no function missing"):
        function_lines(NESTED, "missing")


def test_instructions_of_x86_count_by_the_width_of_their_result() -> None:
    assert multiply_adds("vfmadd231ps\t(%rax){1to16}, %zmm1, %zmm2", FP32) == 16
    assert multiply_adds("vpmaddwd\t%ymm0, %ymm1, %ymm2", INT16) == 16
    assert multiply_adds("{vex} vpdpbusd\t(%rax), %ymm1, %ymm2", INT8) == 32
    assert multiply_adds("vpmaddwd\t%ymm0, %ymm1, %ymm2", BF16) == 0


def most(target: str, kind: str) -> float:
    """Multiply-adds of the best instruction."""
    return max(multiply_adds(block[0], kind) for block in alone(kind, TARGETS[target].features))


def test_the_best_instruction_is_one_that_the_target_has() -> None:
    neon = [most(name, INT8) for name in ("neon", "neon_dotprod", "neon_i8mm_bf16")]
    assert neon == [4, 4 * 4, 2 * 2 * 8]
    assert [most("neon_dotprod", BF16), most("neon_i8mm_bf16", BF16)] == [4, 2 * 2 * 4]
    assert [most(name, INT16) for name in ("avx2", "avx512_vnni")] == [16, 32]


@pytest.fixture(scope="module")
def kernels() -> tuple[str, list[Compiled]]:
    return compiled(TARGET)


@pytest.mark.needs("aarch64-linux-gnu-g++")
def test_a_loop_multiplies_what_its_tile_has(kernels: tuple[str, list[Compiled]]) -> None:
    assembly, found = kernels
    names = {kernel.product.name for kernel in found}
    assert {"fp32", "bf16", "int8 x int4", "int16 x int8", "int16 x int8 cache"} <= names
    for kernel in found:
        kind, loop = kernel.product.kind, hot_loop(assembly, kernel)
        # No more: of this target no sum needs products of its own.
        assert loop.multiply_adds(kind) == kernel.rows * kernel.columns * kernel.channels, kernel
        assert len(loop.instructions) > kernel.multiply_adds / most(TARGET.name, kind)
        # The widest load is of two registers of 16 bytes.
        assert 32 * loop.loads >= kernel.weight_bytes, kernel


@pytest.mark.needs("aarch64-linux-gnu-g++")
def test_a_loop_of_another_form_is_refused(kernels: tuple[str, list[Compiled]]) -> None:
    assembly, found = kernels
    kernel = next(each for each in found if each.product.name == "int8 x int8")
    other = Compiled(kernel.product, kernel.function, kernel.rows, kernel.columns, 1024)
    with pytest.raises(CountError, match="in a turn, but"):
        hot_loop(assembly, other)


@pytest.mark.needs("llvm-mca-19")
def test_a_model_does_the_best_instruction_as_often_as_the_cpu_has_pipes() -> None:
    # Software optimization guides of Neoverse V1 and N2: 4 and 2 pipes of vectors.
    for cpu, pipes in (("neoverse-v1", 4), ("neoverse-n2", 2)):
        for kind in (FP32, BF16, INT8):
            limit = model.limit(TARGET, cpu, kind)
            assert limit == pytest.approx(pipes * most(TARGET.name, kind), rel=0.02)
    with pytest.raises(CountError, match=r"llvm-mca\S* failed"):
        model.limit(TARGET, "neoverse-n1", INT8)


@pytest.mark.needs("aarch64-linux-gnu-g++", "llvm-mca-19")
def test_no_product_is_faster_than_the_best_instruction(
    kernels: tuple[str, list[Compiled]],
) -> None:
    lines = table(TARGET, ["neoverse-v1"], *kernels).splitlines()
    shares = [int(line.partition("(")[2].partition(" %")[0]) for line in lines[2:]]
    assert len(shares) > 15
    assert all(0 < share <= 100 for share in shares)
