"""A lock between processes, held through an open file that also keeps the session's lease.

The lease has two slots, written in turn, so that a torn write costs nothing: a write that a crash or a full
disk cut short was never acknowledged, and the other slot has what was true before it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Generator
from contextlib import contextmanager

import msgspec

from ...contract import AgentError, encode

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


class LeaseRow(msgspec.Struct):
    epoch: int = 0
    owner: str | None = None
    until: float = 0.0
    turn: int = 0
    """Counts the writes; the first goes to the second slot."""
    wake_at: str | None = None


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
