"""The rules that keep the layers apart, checked on the sources."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC, PACKAGE = ROOT / "csrc", ROOT / "src/cpu_backend"

# Functions in C, so nothing that the linker could merge across instruction sets.
C_HEADERS = {"cstdint", "cstddef", "cstring"}


def sources(folder: Path, *suffixes: str) -> Iterator[tuple[str, str]]:
    """(path from the root, text) of every file below the folder; an empty answer is an error."""
    found = sorted(p for p in folder.rglob("*") if p.suffix in suffixes)
    assert found, f"no sources in {folder}"
    for path in found:
        yield path.relative_to(ROOT).as_posix(), path.read_text()


def cpp(*folders: str) -> Iterator[tuple[str, str]]:
    for folder in folders:
        yield from sources(CSRC / folder, ".h", ".cpp", ".inl")


def code_only(text: str) -> str:
    """C++ without its comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def test_import_loads_neither_torch_nor_vllm() -> None:
    code = (
        "import sys, cpu_backend\n"
        "print(*sorted({m.partition('.')[0] for m in sys.modules} & {'torch', 'vllm', 'numpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_kernels_know_nothing_of_torch() -> None:
    for path, text in cpp("isa", "core", "kernels", "dispatch", "collectives"):
        found = re.search(r"torch|\bATen\b|\bat::|\bc10\b|TORCH_", code_only(text))
        assert not found, f"{path} mentions {found and found.group()}"


def test_kernels_use_no_templates_of_the_standard_library() -> None:
    """Inline code of the standard library would be merged across instruction sets."""
    for path, text in cpp("isa", "kernels"):
        included = set(re.findall(r"#include <(.+)>", text))
        assert included <= C_HEADERS | {"immintrin.h", "arm_neon.h", "vecintrin.h"}, path
        assert "std::" not in code_only(text), path


def test_intrinsics_stay_in_isa() -> None:
    for path, text in cpp("core", "kernels", "dispatch", "collectives", "torch_ops"):
        found = re.search(r"\b_mm\d*_\w+|\b__m\d+\w*|\bv(ld|st)1q\w*|\bvec_\w+\(", code_only(text))
        assert not found, f"{path} uses {found and found.group()}"
        assert "immintrin.h" not in text, path


def test_openmp_stays_in_torch_ops() -> None:
    for path, text in cpp("isa", "core", "kernels", "dispatch", "collectives"):
        assert not re.search(r"\bpragma\s+omp|omp\.h|\bomp_\w+\(", text), path


def test_own_ops_are_named_in_three_python_files() -> None:
    users = [p for p, text in sources(PACKAGE, ".py") if "torch.ops.cpu_backend" in text]
    assert users == [f"src/cpu_backend/{name}.py" for name in ("ops", "sparse_ops", "state_ops")]


def test_the_host_is_imported_in_few_places() -> None:
    """All else has to go through host/, where each name is held against the installed host's."""
    allowed = ("host/", "worker/", "attention/", "platform.py")
    for path, text in sources(PACKAGE, ".py"):
        if not path.removeprefix("src/cpu_backend/").startswith(allowed):
            found = re.search(r"^ *(from|import) vllm\b.*", text, re.MULTILINE)
            assert not found, f"{path}: {found and found.group()}"
            assert not re.search(r"import_module\(.vllm", text), path


def test_environment_is_read_in_the_open() -> None:
    """Every variable of this project that the sources name is in the table of envs.py."""
    table = (PACKAGE / "envs.py").read_text()
    for path, text in [*sources(PACKAGE, ".py"), *cpp("torch_ops", "dispatch")]:
        for name in re.findall(r"(?:environ|getenv)\W{1,6}(?:get\W{1,3})?(CPU_BACKEND_\w+)", text):
            assert f'"{name}"' in table, f"{path} reads {name}"


@pytest.mark.parametrize("folder", ["src", "csrc", "tests"])
def test_files_stay_short(folder: str) -> None:
    for path, text in sources(ROOT / folder, ".py", ".h", ".cpp", ".inl"):
        lines = text.count("\n")
        assert lines < 500, f"{path} has {lines} lines: split it"
