"""Pages of freed memory go back to the system where they were asked to.

Each case in a process of its own: any heap with holes in it fills these first.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from cpu_backend.runtime.pages import give_back, zero_pages

SCRIPT = """
from pathlib import Path
import torch
from cpu_backend.runtime.pages import freed_at_once

def anonymous_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1])

def blocks():
    return [torch.ones(4 << 20, dtype=torch.uint8) for _ in range(32)]

with freed_at_once():
    inside = blocks()
outside = blocks()
for made in (inside, outside):
    before = anonymous_kib()
    del made[::2]
    print((before - anonymous_kib()) / (64 << 10))
"""


def shared_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssShmem")).split()[1])


def test_pages_that_were_given_back_leave_the_process_and_come_again_as_zeros() -> None:
    size = 32 << 20
    pages = zero_pages(size)
    pages.fill_(3)
    before = shared_kib()
    assert give_back(pages[100:]) == size  # the storage of a view
    assert before - shared_kib() == size >> 10
    assert not pages.any()
    pages.fill_(5)
    assert int(pages[-1]) == 5


def test_every_second_block_leaves_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    inside, outside = map(float, output.stdout.split())
    assert inside == pytest.approx(1, abs=0.1)
    assert outside == pytest.approx(0, abs=0.1)  # reused, without asking the system again
