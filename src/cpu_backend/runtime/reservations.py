"""Which CPUs the servers of this machine compute on, so that they keep out of each other's way.

Each server has one file in a folder of the temporary directory.  Every process that computes for
it holds a shared lock on that file; the kernel takes the lock away when the process ends, however
it ends.  A file that nobody holds is stale, and whoever comes next removes it.  Reservations are
advice between servers: where they cannot be kept (no writable folder), a server plans as if alone.
"""

import contextlib
import fcntl
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cpu_backend.runtime.sysfs import format_cpu_list, parse_cpu_list

logger = logging.getLogger("vllm.cpu_backend")  # under the host's logger, so it is seen


@dataclass(frozen=True)
class Reservation:
    """One server: the CPUs it keeps others off, those of them on which it has compute threads, and
    those of others that it was planned beside."""

    cpus: frozenset[int]
    computing: frozenset[int]
    beside: frozenset[int]


READABLE = 0o644  # by other users' servers, whatever this one's umask
LISTS = ("cpus", "computing", "beside")


class Reservations:
    """The table of this machine, or of the containers that share a temporary directory."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / "cpu_backend_servers"

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Nobody else reads and decides meanwhile."""
        try:
            self._folder.mkdir(mode=0o777, exist_ok=True)
            with contextlib.suppress(OSError):
                self._folder.chmod(0o1777)  # of all users, like the directory around it
            lock = _open_for_all(self._folder / "lock")
        except OSError as error:
            logger.debug("cpu_backend: servers do not see each other's CPUs: %s.", error)
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def taken(self, server: str = "") -> frozenset[int]:
        """CPUs on which servers other than ``server`` compute now."""
        others = (held for name, held in self._read().items() if name != server)
        return frozenset().union(*(held.cpus for held in others))

    def computing(self) -> frozenset[int]:
        """CPUs with compute threads of any server."""
        return frozenset().union(*(held.computing for held in self._read().values()))

    def find(self, server: str) -> Reservation | None:
        """What another process of ``server`` has reserved for all of them."""
        return self._read().get(server)

    def hold(self, server: str, reservation: Reservation) -> None:
        """Keep the reservation for as long as this process, or another one that holds it, lives."""
        path = self._folder / f"{server}.json"
        lists = {name: format_cpu_list(cpus) for name, cpus in vars(reservation).items()}
        try:
            if server not in self._read():
                path.write_text(json.dumps({"pid": os.getpid(), **lists}))
                path.chmod(READABLE)
            # Kept open, and with it the lock, until this process ends.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError as error:
            logger.debug("cpu_backend: CPUs are not reserved: %s.", error)

    def note(self, server: str, text: str) -> None:
        """Keep a sentence about ``server`` for ``python -m cpu_backend.info`` to show."""
        path = self._folder / f"{server}.json"
        with self.changing(), contextlib.suppress(OSError, ValueError):
            fields = json.loads(path.read_text())
            if text not in fields.setdefault("notes", []):
                fields["notes"].append(text)
                path.write_text(json.dumps(fields))  # in place: its lock is on this very file

    def describe(self) -> list[str]:
        """A line for each living server."""
        lines = []
        for server in self._read():
            with contextlib.suppress(OSError, ValueError, KeyError):
                fields = json.loads((self._folder / f"{server}.json").read_text())
                notes = "".join(f"; {note}" for note in fields.get("notes", []))
                lines.append(f"process {fields['pid']} on CPUs {fields['computing']}{notes}")
        return lines

    def _read(self) -> dict[str, Reservation]:
        """Server -> reservation, of the living."""
        table: dict[str, Reservation] = {}
        try:
            paths = sorted(self._folder.glob("*.json"))
        except PermissionError:  # below a folder of somebody else's
            return table
        for path in paths:
            with contextlib.suppress(OSError, ValueError, KeyError):
                if _is_held(path):
                    fields = json.loads(path.read_text())
                    table[path.stem] = Reservation(
                        *(frozenset(parse_cpu_list(fields[name])) for name in LISTS)
                    )
                else:
                    path.unlink()
        return table


def _open_for_all(path: Path) -> int:
    """The descriptor of a file that all users may lock, made if it is not there."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, READABLE)
        with contextlib.suppress(OSError):  # another user was faster
            os.fchmod(descriptor, READABLE)
        return descriptor


def _is_held(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
