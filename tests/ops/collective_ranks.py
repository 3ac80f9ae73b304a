"""One rank of a group, for test_collectives.py: python collective_ranks.py NAME SIZE RANK THREADS.

Runs every case below and prints one JSON object, {case: what went wrong, or ""}.  Each rank knows
what the others bring, so it can say by itself what every result must be, bit for bit.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable

import pytest
import torch

from cpu_backend import ops

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# One element, odd, the host's decode and prefill shapes, more than all slots of all lanes hold.
SHAPES = {"one": (1,), "odd": (3, 77), "decode": (4, 4096), "prefill": (1500, 1536), "none": (0, 8)}


class Rank:
    """This process in its group, and the cases it can run."""

    def __init__(self, name: str, size: int, rank: int, threads: int) -> None:
        self.size, self.rank = size, rank
        ops.set_num_threads(threads)
        self.handle = torch.ops._C.init_shm_manager(name, size, rank, threads)
        assert torch.ops._C.join_shm_manager(self.handle, name) == name

    def brought_by(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 + rank)
        return torch.randn(shape, generator=generator).to(dtype)

    def brought(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
        return [self.brought_by(rank, shape, dtype) for rank in range(self.size)]

    def all_reduce(self, shape: str, dtype: str) -> None:
        brought = self.brought(SHAPES[shape], DTYPES[dtype])
        total = brought[0].float()
        for other in brought[1:]:
            total = total + other.float()
        mine = brought[self.rank].clone()
        torch.ops._C.shm_allreduce(self.handle, mine)
        assert torch.equal(mine, total.to(mine.dtype))

    def all_reduce_strided(self) -> None:
        whole = torch.zeros(6, 10)
        part = whole[:, 2:7]
        part.fill_(self.rank + 1)
        torch.ops._C.shm_allreduce(self.handle, part)
        expected = torch.zeros(6, 10)
        expected[:, 2:7] = sum(range(1, self.size + 1))
        assert torch.equal(whole, expected)

    def all_gather(self, shape: str, dtype: str) -> None:
        brought = self.brought(SHAPES[shape], DTYPES[dtype])
        output = torch.empty(
            (self.size * SHAPES[shape][0], *SHAPES[shape][1:]), dtype=DTYPES[dtype]
        )
        torch.ops._C.shm_all_gather(self.handle, brought[self.rank], output)
        assert torch.equal(output, torch.cat(brought))

    def gather(self, shape: str, dtype: str) -> None:
        brought = self.brought(SHAPES[shape], DTYPES[dtype])
        for dst in range(self.size):
            outputs = [torch.empty_like(b) for b in brought] if dst == self.rank else None
            torch.ops._C.shm_gather(self.handle, brought[self.rank], outputs, dst)
            if outputs is not None:
                assert all(map(torch.equal, outputs, brought))

    def any_type_is_gathered(self) -> None:
        for dtype in (torch.int64, torch.uint8, torch.bool, torch.float64):
            mine = torch.full((5,), self.rank).to(dtype)
            output = torch.empty(5 * self.size, dtype=dtype)
            torch.ops._C.shm_all_gather(self.handle, mine, output)
            expected = [torch.full((5,), rank).to(dtype) for rank in range(self.size)]
            assert torch.equal(output, torch.cat(expected))

    def replayed_step(self, strided: bool) -> None:
        """What a decode step does with it: recorded once, run again on other data."""
        x = torch.zeros(9, 4096, dtype=torch.bfloat16)

        def step() -> torch.Tensor:
            y = x * 2
            torch.ops._C.shm_allreduce(self.handle, y[:, 2:7] if strided else y)
            return y + 1

        recording = ops.StepRecording([], [x])
        with recording:
            recording.output = step()
        assert recording.error == "", recording.error
        summed = slice(2, 7) if strided else slice(None)
        for _ in range(3):
            brought = [b * 2 for b in self.brought(x.shape, torch.bfloat16)]
            x.copy_(brought[self.rank] / 2)
            expected = brought[self.rank].clone()
            expected[:, summed] = sum(b.float() for b in brought).to(torch.bfloat16)[:, summed]
            recording.fill_with_garbage()
            assert torch.equal(recording.replay([]), expected + 1)

    def tensor_lists(self) -> None:
        def content(rank: int) -> list[torch.Tensor]:
            return [
                self.brought_by(rank, (7, 33), torch.bfloat16),
                torch.arange(rank + 1),
                torch.empty(0),
                self.brought_by(rank, (3000, 1024), torch.float32),
                torch.tensor(5.0),
                self.brought_by(rank, (8, 6), torch.float16)[:, ::2],
            ]

        following, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        torch.ops._C.shm_send_tensor_list(self.handle, content(self.rank), following)
        received = torch.ops._C.shm_recv_tensor_list(self.handle, before)
        for got, expected in zip(received, content(before), strict=True):
            assert got.dtype == expected.dtype
            assert torch.equal(got, expected.flatten())

    def wrong_arguments(self) -> None:
        c, h = torch.ops._C, self.handle
        other = (self.rank + 1) % self.size
        refused(TypeError, "dtype Double", c.shm_allreduce, h, torch.ones(2).double())
        refused(ValueError, "no group with handle 99", c.shm_allreduce, 99, torch.ones(2))
        x = torch.ones(4)
        refused(TypeError, "output has dtype Half", c.shm_all_gather, h, x, x.half())
        refused(ValueError, "times the 4 elements", c.shm_all_gather, h, x, torch.ones(5))
        refused(ValueError, "one output per rank", c.shm_gather, h, x, None, self.rank)
        refused(ValueError, "dst is -1", c.shm_gather, h, x, None, -1)
        short = [torch.ones(3)] * self.size
        refused(ValueError, "as many elements", c.shm_gather, h, x, short, self.rank)
        refused(ValueError, f"dst is {self.size}", c.shm_send_tensor_list, h, [x], self.size)
        refused(ValueError, f"src is {self.rank}", c.shm_recv_tensor_list, h, self.rank)
        lonely = c.init_shm_manager(f"lonely {self.rank} {id(self)} {other}", 2, 0, 1)
        refused(ValueError, "has not been joined", c.shm_allreduce, lonely, x)
        refused(RuntimeError, "not possible", c.init_shm_manager, "group", 2, 5, 1)


def refused(kind: type[Exception], words: str, op: Callable[..., object], *args: object) -> None:
    """``op`` must fail so, before it waits for anybody."""
    with pytest.raises(kind, match=re.escape(words)):
        op(*args)


def cases() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name -> method and arguments, in the order that all ranks keep."""
    result = {
        f"{method}-{shape}-{dtype}": (method, (shape, dtype))
        for method in ("all_reduce", "all_gather", "gather")
        for shape in SHAPES
        for dtype in DTYPES
    }
    for method in (
        "all_reduce_strided",
        "any_type_is_gathered",
        "tensor_lists",
        "wrong_arguments",
    ):
        result[method] = (method, ())
    for strided in (False, True):
        result[f"replayed_step-{'strided' if strided else 'dense'}"] = ("replayed_step", (strided,))
    return result


def main() -> None:
    name, *numbers = sys.argv[1:]
    ops.load()
    rank = Rank(name, *map(int, numbers))
    outcome = {}
    for case, (method, arguments) in cases().items():
        try:
            getattr(rank, method)(*arguments)
            outcome[case] = ""
        except Exception as error:
            outcome[case] = repr(error)
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
