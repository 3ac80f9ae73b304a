"""Servers that keep off each other's cores, with real processes that die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from cpu_backend.runtime import plan, threads
from cpu_backend.runtime.plan import Machine, ThreadSettings
from cpu_backend.runtime.reservations import Reservation, Reservations
from tests.plugin.fake_sysfs import graviton, write_machine, xeon_snc4

HOLD = """
import sys
from pathlib import Path
from cpu_backend.runtime.reservations import Reservation, Reservations
server, cpus = sys.argv[2], frozenset(map(int, sys.argv[3].split(",")))
table = Reservations(Path(sys.argv[1]))
with table.changing():
    table.hold(server, Reservation(cpus, cpus, frozenset()))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another server, on CPUs 0 to 2."""
    command = [sys.executable, "-c", HOLD, str(tmp_path), "other", "0,1,2"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def machine(root: Path, cores: int = 8) -> Machine:
    tree = write_machine(root / "tree", graviton(cores))
    return Machine(tree.topology(), tree.limits(), ThreadSettings())


def test_living_server_is_seen_and_a_killed_one_is_not(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    table = Reservations(tmp_path)
    assert table.taken("mine") == {0, 1, 2}
    assert table.computing() == {0, 1, 2}
    assert table.taken("other") == frozenset()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "other.json").exists()
    assert table.taken("mine") == frozenset()
    assert not (tmp_path / "other.json").exists()


def test_reservation_lives_as_long_as_any_process_of_the_server(tmp_path: Path) -> None:
    table = Reservations(tmp_path)
    command = [sys.executable, "-c", HOLD, str(tmp_path), "one", "5"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    ranks = [subprocess.Popen(command, text=True, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    for rank in ranks:
        assert rank.stdout.readline() == "held\n"
    for rank, left in zip(ranks, ({5}, frozenset()), strict=True):
        rank.kill()
        rank.communicate()
        assert table.taken() == left


def test_claim_plans_beside_others_and_all_ranks_agree(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    table, here = Reservations(tmp_path), machine(tmp_path)
    first = threads.claim(here, 2, "mine", table)
    assert [p.cpus for p in first] == [(3, 4), (5, 6)]
    holder.kill()
    holder.wait()
    # The other server has gone, but a rank that comes later must not plan anew.
    assert threads.claim(here, 2, "mine", table) == first
    assert table.taken() == {3, 4, 5, 6}


def test_siblings_and_reserved_cores_are_kept(tmp_path: Path) -> None:
    tree = write_machine(tmp_path / "tree", xeon_snc4(1, 16))
    here = Machine(tree.topology(), tree.limits(), ThreadSettings())
    table = Reservations(tmp_path)
    [mine] = threads.claim(here, 1, "mine", table)
    assert mine.cpus == tuple(range(15))
    assert table.taken() == {*range(16), *range(64, 80)}
    assert table.computing() == set(range(15))


def test_unbound_ranks_reserve_nothing(tmp_path: Path) -> None:
    tree = write_machine(tmp_path / "tree", graviton(8))
    unbound = ThreadSettings.from_env({"VLLM_CPU_OMP_THREADS_BIND": "nobind"})
    table = Reservations(tmp_path)
    threads.claim(Machine(tree.topology(), tree.limits(), unbound), 1, "mine", table)
    assert table.taken() == frozenset()


def test_without_a_writable_folder_a_server_plans_as_if_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    table = Reservations(tmp_path / "file" / "folder")
    [alone] = threads.claim(machine(tmp_path), 1, "mine", table)
    assert alone.cpus == tuple(range(8))


def test_damaged_files_are_ignored(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    (tmp_path / "other.json").write_text('{"cpus": ')
    assert Reservations(tmp_path).taken() == frozenset()


STEP_ASIDE = """
import os, sys, threading, time
from pathlib import Path
from cpu_backend.runtime import threads
from cpu_backend.runtime.plan import Machine
from cpu_backend.runtime.reservations import Reservation, Reservations
table = Reservations(Path(sys.argv[1]))
cpus = sorted(os.sched_getaffinity(0))
one = frozenset(cpus[:1])
table.hold("mine", Reservation(one, one, frozenset()))
machine = Machine.read()
if sys.argv[2] == "server":
    thread = threading.Thread(target=time.sleep, args=(60,), daemon=True)
    thread.start()
    moved = threads.step_aside(machine, table=table)
    main = os.sched_getaffinity(0)
else:
    os.sched_setaffinity(0, one)
    thread = threading.Thread(target=time.sleep, args=(60,), daemon=True)
    thread.start()
    moved = threads.step_aside(machine, inherited_from=cpus[0], table=table)
    main = os.sched_getaffinity(0)
assert Machine.read().limits.cpus == set(cpus), "an engine started later may use all CPUs"
print(moved == set(cpus[1:]), main == (set(cpus[1:]) if sys.argv[2] == "server" else one),
      os.sched_getaffinity(thread.native_id) == set(cpus[1:]))
"""


@pytest.mark.parametrize("kind", ["server", "engine"])
def test_threads_that_do_not_compute_step_aside(tmp_path: Path, kind: str) -> None:
    assert len(os.sched_getaffinity(0)) > 1, "this test needs two CPUs"
    command = [sys.executable, "-c", STEP_ASIDE, str(tmp_path), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True True True\n", done.stdout + done.stderr


def test_nothing_moves_where_every_cpu_computes(tmp_path: Path) -> None:
    table = Reservations(tmp_path)
    here = plan.Machine.read()
    table.hold("mine", Reservation(here.limits.cpus, here.limits.cpus, frozenset()))
    before = os.sched_getaffinity(0)
    assert threads.step_aside(here, table=table) == frozenset()
    assert os.sched_getaffinity(0) == before


def test_a_note_is_shown_once_and_only_while_its_server_lives(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    table = Reservations(tmp_path)
    for _ in range(2):
        table.note("other", "steps are not replayed")
    table.note("nobody", "lost")
    [line] = table.describe()
    assert line == f"process {holder.pid} on CPUs 0-2; steps are not replayed"
    assert table.taken("mine") == {0, 1, 2}
    holder.kill()
    holder.wait()
    assert table.describe() == []


def hold_as(user: int, folder: Path, cpu: int, pipe: Connection) -> None:
    """A server of ``user``, who shuts others out: sends what it sees taken, and waits to end."""
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    os.umask(0o077)
    table, cpus = Reservations(folder), frozenset({cpu})
    with table.changing():
        pipe.send(table.taken(str(user)))
        table.hold(str(user), Reservation(cpus, cpus, frozenset()))
    pipe.send("held")
    pipe.recv()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may write to, below no folder that keeps others out."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


def test_a_folder_that_keeps_one_out_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0)
    user = os.geteuid()
    os.seteuid(user or 1001)  # nothing keeps root out
    try:
        assert Reservations(tmp_path / "locked" / "servers").taken() == frozenset()
    finally:
        os.seteuid(user)


@pytest.mark.needs("root")
def test_servers_of_two_users_see_each_other(shared: Path) -> None:
    """The folder and its lock are the first one's; a third run finds nothing left to respect."""
    fork = multiprocessing.get_context("fork")
    servers, seen = [], []
    for user, cpu in ((1001, 3), (1002, 5)):
        here, there = fork.Pipe()
        arguments = (user, shared / "servers", cpu, there)
        process = fork.Process(target=hold_as, args=arguments)
        process.start()
        there.close()  # should it end, its side is closed
        seen.append(here.recv())
        assert here.recv() == "held"
        servers.append((process, here))
    assert seen == [frozenset(), {3}]
    assert Reservations(shared / "servers").taken() == {3, 5}
    for process, here in servers:
        here.send("end")
        process.join()
    assert Reservations(shared / "servers").taken() == frozenset()
