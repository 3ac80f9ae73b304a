"""Groups of processes share a gloo device, whose thread wakes a hundred times a second."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
rank, file, shared = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "shared"
if shared:
    from cpu_backend.host.gloo_device import share
    share(None)
dist.init_process_group("gloo", init_method=f"file://{file}", world_size=2, rank=rank)
groups = [dist.new_group([0, 1], backend="gloo") for _ in range(3)]
alone = [dist.new_group([one], backend="gloo") for one in (0, 1)][rank]
for number, group in enumerate(groups):
    numbers = torch.full((1000,), float(rank + number))
    dist.all_reduce(numbers, group=group)
    assert (numbers == 1 + 2 * number).all()
said = [None, None]
dist.all_gather_object(said, {"rank": rank}, group=groups[0])
assert said == [{"rank": 0}, {"rank": 1}]
dist.barrier(group=alone)
threads = [task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
print(threads.count("gloo_tcp_loop"))
dist.destroy_process_group()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads have names in Linux's /proc")
@pytest.mark.parametrize(("shared", "threads"), [("shared", 1), ("torch's own", 5)])
def test_groups_share_a_device(tmp_path: Path, shared: str, threads: int) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(tmp_path / "store"), shared],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [rank.communicate(timeout=120)[0].split() for rank in ranks]
    assert said == [[str(threads)]] * 2
