"""Stand-ins for CUDA's libraries: a library that asks for them loads, and hears of no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import cuda_stubs

# As torch's libraries do: names without a definition, and a library that no machine has.
ASKING = """
extern int cudaGetDevice(void);
extern int cudaGetLastError(void);
extern const char* cudaGetErrorString(void);
int device(void) { return cudaGetDevice() == cudaGetLastError() ? cudaGetDevice() : -1; }
const char* text(void) { return cudaGetErrorString(); }
"""
CALLS = """
import ctypes, sys
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
library = ctypes.CDLL(sys.argv[2])
library.text.restype = ctypes.c_char_p
print(library.device(), library.text().decode())
"""


@pytest.mark.needs("gcc")
def test_stubs_answer_with_a_number_or_a_text(tmp_path: Path) -> None:
    folder = tmp_path / "torch/lib"
    folder.mkdir(parents=True)
    absent = "libcudart-of-nobody.so.1"
    shared = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o"]
    missing, asking = tmp_path / absent, folder / "libasking.so"
    subprocess.run([*shared, str(missing), f"-Wl,-soname,{absent}"], input=b"", check=True)
    needing = [str(asking), "-x", "none", "-Wl,--no-as-needed", str(missing)]
    subprocess.run([*shared, *needing], input=ASKING.encode(), check=True)
    missing.unlink()

    assert cuda_stubs.make(folder) == [absent]
    command = [sys.executable, "-c", CALLS, str(folder / absent), str(asking)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{cuda_stubs.NO_DEVICE} no GPU: CUDA is a stub here\n"
