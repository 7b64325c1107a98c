"""A lock between processes, held through an open file that also keeps the session's lease.

The lease has two slots, written in turn, so that a torn write costs nothing: a write that a crash or a full
disk cut short was never acknowledged, and the other slot has what was true before it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from ...contract import AgentError, decode, encode
from .._base import sync_folder
from .._rows import Controls, LeaseRow, Posted

T = TypeVar("T")
BINARY = getattr(os, "O_BINARY", 0)
"""Else Windows would change line ends under our lengths and checksums."""


class Contended(AgentError):
    """Another process holds the lock now."""

    def __init__(self, path: str) -> None:
        super().__init__(
            "SessionBusy", f"{path} stayed locked by another process; try again", meta={"path": path}
        )


@contextmanager
def locked(path: str) -> Generator[int]:
    """Hold the lock file at ``path`` alone; yields its descriptor. Raises ``Contended`` at once where another
    holds it: one who waits here would hold up every session of the store.

    The system lets go of it when the process dies.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | BINARY | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            if not _try_lock(descriptor):
                raise Contended(path)
            try:
                if _is_at(descriptor, path):  # else its session was deleted, and the file with it
                    yield descriptor
                    return
            finally:
                _unlock(descriptor)
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


if os.name == "nt":  # pragma: no cover

    def _try_lock(descriptor: int) -> bool:
        import msvcrt

        try:
            os.lseek(descriptor, 1 << 30, os.SEEK_SET)  # far beyond the content, which stays readable
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # pyright: ignore
        except OSError:
            return False
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
        return True

    def _unlock(descriptor: int) -> None:
        """Closing does it."""

else:

    def _try_lock(descriptor: int) -> bool:
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        """Closing is not enough: a process that was forked meanwhile has a copy of the descriptor."""
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)


_SLOT = 1024


_decode = msgspec.json.Decoder(LeaseRow).decode


def read_lease(descriptor: int) -> LeaseRow:
    os.lseek(descriptor, 0, os.SEEK_SET)
    data = os.read(descriptor, 2 * _SLOT)
    first, second = data[:_SLOT], data[_SLOT:]
    rows = [row for row in (_parse(first), _parse(second)) if row is not None]
    if rows:
        return max(rows, key=lambda row: row.turn)
    if not first.strip(b"\0"):
        return LeaseRow()  # there was none, or its very first write was cut short
    raise AgentError(
        "SessionCorrupt",
        "a session's .lock file, which holds its lease, cannot be read; make sure that no writer runs "
        "and delete it",
    )


def write_lease(descriptor: int, row: LeaseRow) -> None:
    row.turn = read_lease(descriptor).turn + 1
    line = encode(row)
    data = b"%08x %s\n" % (zlib.crc32(line), line)
    if len(data) > _SLOT:
        raise AgentError("InvalidEntry", f"a lease's owner may have {_SLOT - 128} bytes; found {row.owner!r}")
    os.lseek(descriptor, row.turn % 2 * _SLOT, os.SEEK_SET)
    while data:
        data = data[os.write(descriptor, data) :]
    os.fsync(descriptor)


def _parse(slot: bytes) -> LeaseRow | None:
    checksum, _, line = slot.partition(b"\n")[0].partition(b" ")
    if checksum != b"%08x" % zlib.crc32(line) or not line:
        return None
    return _decode(line)


class ControlFile:
    """The control queue: one small file, written anew with every change."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        # No session's file begins with a dot.
        self._path = os.path.join(folder, ".controls.json")
        self._lock = os.path.join(folder, ".controls.lock")
        self._seen: tuple[int, int, int] | None = None
        self._queue = Controls()

    def change(self, change: Callable[[Controls], T]) -> T:
        with locked(self._lock):
            queue = Controls(self.read().rows.values())
            value = change(queue)
            if queue.rows != self._queue.rows:
                self._write(list(queue.rows.values()))
            return value

    def read(self) -> Controls:
        """What the file holds now, to look at; one that is as it was is not read again."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            self._seen, self._queue = None, Controls()
            return self._queue
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen != self._seen:
            with open(self._path, "rb") as file:
                self._queue = Controls(decode(file.read(), list[Posted]))
            self._seen = seen
        return self._queue

    def _write(self, rows: list[Posted]) -> None:
        fresh = self._path + ".new"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | BINARY, 0o600)
        try:
            data = encode(rows)
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(fresh, self._path)
        sync_folder(self._folder)
