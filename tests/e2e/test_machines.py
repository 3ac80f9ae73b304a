"""A server over two machines; the second one is a network namespace of this one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.even_heads import write_even_heads
from tests.e2e.server import VLLM, Server, environment, free_port
from tests.tools import find

pytestmark = pytest.mark.needs("ip", "network namespaces")

FIRST, SECOND = "10.213.7.1", "10.213.7.2"
SECONDS = 60  # ten of silence, and what a busy machine takes to end


@pytest.fixture(scope="module")
def even_model(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("even") / "model"
    write_even_heads(Path(model_path), target)
    return str(target)


@pytest.fixture(scope="module")
def second_machine() -> Iterator[list[str]]:
    """What a command begins with to run there.  It has an address of its own and shares files."""
    name, wire = f"cpu{os.getpid()}", f"c{os.getpid()}"
    setup = [
        f"netns add {name}",
        f"link add {wire}a type veth peer name {wire}b netns {name}",
        f"addr add {FIRST}/30 dev {wire}a",
        f"link set {wire}a up",
        f"-n {name} addr add {SECOND}/30 dev {wire}b",
        f"-n {name} link set {wire}b up",
        f"-n {name} link set lo up",
    ]
    ip = str(find("ip"))
    try:
        for command in setup:
            subprocess.run([ip, *command.split()], check=True)
        yield [ip, "netns", "exec", name]
    finally:
        subprocess.run([ip, "netns", "del", name], capture_output=True)


@contextlib.contextmanager
def two_machines(
    model: str, way: str, second: list[str], folder: Path
) -> Iterator[tuple[Server, Server]]:
    layout = [way, "2", "--nnodes", "2", "--master-addr", FIRST]
    layout += ["--master-port", str(free_port()), "--dtype", "float32", "--max-model-len", "2048"]
    first = Server(model, folder / "first", *layout, "--node-rank", "0")
    first.environ = {"VLLM_CPU_OMP_THREADS_BIND": "0"}
    other = Server(model, folder / "second")
    other.environ = {"VLLM_CPU_OMP_THREADS_BIND": "1"}
    command = [*second, VLLM, "serve", model, "--device", "cpu", *layout, "--node-rank", "1"]
    with (folder / "second").open("w") as out:
        other.process = subprocess.Popen(
            [*command, "--headless"],
            stdout=out,
            stderr=out,
            env=environment(**other.environ),
            start_new_session=True,
        )
    try:
        with first:
            yield first, other
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(other.process.pid, signal.SIGKILL)
        other.process.wait()


def ends(server: Server) -> bool:
    start = time.monotonic()
    while server.group() and time.monotonic() - start < SECONDS:
        time.sleep(0.1)
    return server.group() == []


@pytest.mark.parametrize(
    ("way", "killed"),
    [
        ("-tp", "first"),
        pytest.param("-tp", "second", marks=pytest.mark.slow),
        pytest.param("-pp", "first", marks=pytest.mark.slow),
    ],
)
def test_two_machines_give_the_tokens_of_one_and_miss_each_other(
    way: str,
    killed: str,
    even_model: str,
    second_machine: list[str],
    prompts: list[list[int]],
    expected: list[list[int]],
    tmp_path: Path,
) -> None:
    with two_machines(even_model, way, second_machine, tmp_path) as (first, second):
        for ids, tokens in zip(prompts, expected, strict=True):
            if len(ids) <= 200:
                assert first.tokens(ids) == tokens
        dead, left, rank = (first, second, 0) if killed == "first" else (second, first, 1)
        os.killpg(dead.process.pid, signal.SIGKILL)
        assert ends(left), left.log()[-4000:]
        assert f"this server ends, because rank {rank}" in left.log()
