"""Pages as files, and how much room they may take.

A file is written under another name and renamed when it is whole; its last bytes hold a checksum of
the rest.  So whatever happens to a server, a disk or a file, what is read is what was written, or
it is not there.

A page goes through one buffer, by one system call and one checksum: at each, Python's lock goes to
the thread that computes, which may keep it for milliseconds (an engine in the program's own process
read 30 layers of 32 pages one by one in 2 s).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

# Length and CRC-32 of the pages before it.
TRAILER = struct.Struct("<8sQI4x")
MAGIC = b"KVPAGES1"
UNFINISHED = ".part"
KEPT = 0.9  # of the room when there is none left
STALE_SECONDS = 3600  # after which a file that was never finished goes, too


class PageFolder:
    """The files of one identity.

    A key is what a page is found by: bytes that no two different pages share.  Each of ``ranks``
    processes has a part of a page, in a file of its own.
    """

    def __init__(self, folder: Path, ranks: int) -> None:
        self.folder, self.ranks = str(folder), ranks
        self._numbers = itertools.count()

    def path(self, key: bytes, rank: int) -> str:
        name = key.hex()
        return f"{self.folder}/{name[:2]}/{name}.{rank}"

    def has(self, key: bytes) -> bool:
        """Whether every rank's part is there."""
        return all(os.path.exists(self.path(key, rank)) for rank in range(self.ranks))

    def touch(self, key: bytes) -> None:
        """It was of use: others go before it."""
        for rank in range(self.ranks):
            with contextlib.suppress(OSError):
                os.utime(self.path(key, rank))

    def remove(self, key: bytes, rank: int) -> None:
        """If that can be."""
        with contextlib.suppress(OSError):
            os.unlink(self.path(key, rank))

    def write(self, key: bytes, rank: int, parts: Sequence[memoryview]) -> int:
        """Store the bytes of ``parts``, one after the other; the number of them.  OSError where
        the file cannot be written, of which nothing is left then."""
        path = self.path(key, rank)
        unfinished = f"{path}.{os.getpid()}.{next(self._numbers)}{UNFINISHED}"
        page = b"".join(parts)
        trailer = TRAILER.pack(MAGIC, len(page), zlib.crc32(page))
        try:
            file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o600)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o600)
        try:
            try:
                if os.writev(file, [page, trailer]) != len(page) + len(trailer):
                    raise OSError("the file was cut short")
            finally:
                os.close(file)
            os.replace(unfinished, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise
        return len(page) + len(trailer)

    def read(self, key: bytes, rank: int, parts: Sequence[memoryview]) -> bool:
        """Fill ``parts`` with what was stored; False, and they stay, where there is no such file,
        or another than was written."""
        size = sum(part.nbytes for part in parts)
        content = memoryview(bytearray(size + TRAILER.size + 1))  # a longer file is another
        try:
            file = os.open(self.path(key, rank), os.O_RDONLY)
            try:
                found = os.readv(file, [content])
            finally:
                os.close(file)
        except OSError:
            return False
        if found != size + TRAILER.size:
            return False
        page = content[:size]
        if TRAILER.unpack(content[size:found]) != (MAGIC, size, zlib.crc32(page)):
            return False
        for part in parts:
            part[:] = page[: part.nbytes]
            page = page[part.nbytes :]
        return True


class Room:
    """How many bytes all files below ``root`` may take together: those that were not of use for
    longest go first, whichever model they are of.

    asked: what may be taken; None is half of what the disk has beside other files, of which there
    is never taken more than nine tenths.  ``limit`` is known once the files have been counted.
    """

    def __init__(self, root: Path, asked: int | None) -> None:
        self.root, self.limit = root, 0
        self._asked, self._taken = asked, 0
        self._lock = threading.Lock()
        self._cleaner: threading.Thread | None = None

    def grew(self, count: int) -> None:
        """``count`` bytes more were stored here, for which there may be no room.  What others store
        is seen when files are counted anew."""
        self._taken += count
        if self._taken > self.limit and not (self._cleaner and self._cleaner.is_alive()):
            self._cleaner = threading.Thread(target=self.clean, daemon=True)
            self._cleaner.start()

    def clean(self) -> None:
        """Count, and where all files take more than the limit, remove the oldest until they take
        nine tenths of it."""
        with self._lock:
            files = sorted(self._files())
            taken = sum(size for _, size, _ in files)
            there_is = taken + shutil.disk_usage(self.root).free
            asked = there_is // 2 if self._asked is None else self._asked
            self.limit = int(min(asked, KEPT * there_is))
            if taken > self.limit:
                for _, size, path in files:
                    if taken <= KEPT * self.limit:
                        break
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                        taken -= size
            self._taken = taken

    def _files(self) -> Iterable[tuple[float, int, str]]:
        """(time of the last use, bytes, path) of each; what was never finished is removed."""
        newest = 0.0
        unfinished: list[tuple[float, str]] = []
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    found = os.stat(path)
                    newest = max(newest, found.st_mtime)
                    if name.endswith(UNFINISHED):
                        unfinished.append((found.st_mtime, path))
                    elif name.rpartition(".")[2].isdecimal():
                        yield found.st_mtime, found.st_size, path
        for time, path in unfinished:
            if time < newest - STALE_SECONDS:
                with contextlib.suppress(OSError):
                    os.unlink(path)
