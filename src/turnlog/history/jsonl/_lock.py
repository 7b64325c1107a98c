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

from ...contract import AgentError, Control, JsonObject, decode, encode
from .._base import ANSWER_KEPT, sync_folder

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


# The control queue of a JSONL store: one small file, written anew with every change


class _Row(msgspec.Struct):
    control: Control
    answer: JsonObject | None = None
    answered: float = 0.0


class Controls:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        # No session's file begins with a dot.
        self._path = os.path.join(folder, ".controls.json")
        self._lock = os.path.join(folder, ".controls.lock")
        self._seen: tuple[int, int, int] | None = None
        self._rows: dict[str, _Row] = {}

    def post(self, control: Control) -> None:
        with locked(self._lock):
            rows = self._read()
            if control.id not in rows:
                self._write({**rows, control.id: _Row(control)})

    def posted(self, session_id: str | None) -> list[Control]:
        return [
            row.control
            for row in self._read().values()
            if row.answer is None and session_id in (None, row.control.session_id)
        ]

    def answer(self, control_id: str, answer: JsonObject, now: float) -> None:
        with locked(self._lock):
            rows = self._read()
            row = rows.get(control_id)
            if row is None or row.answer is not None:
                return
            fresh = {
                id: each
                for id, each in rows.items()
                if each.answer is None or each.answered >= now - ANSWER_KEPT
            }
            self._write({**fresh, control_id: _Row(row.control, answer, now)})

    def take_answer(self, control_id: str) -> JsonObject | None:
        row = self._read().get(control_id)
        if row is None or row.answer is None:
            return None
        with locked(self._lock):
            rows = dict(self._read())
            row = rows.pop(control_id, None)
            if row is not None:
                self._write(rows)
        return row and row.answer

    def withdraw(self, control_id: str) -> bool:
        with locked(self._lock):
            rows = dict(self._read())
            row = rows.get(control_id)
            if row is not None and row.answer is None:
                del rows[control_id]
                self._write(rows)
        return row is None or row.answer is None

    def drop(self, session_ids: set[str]) -> None:
        if not self._read():
            return
        with locked(self._lock):
            rows = self._read()
            kept = {id: row for id, row in rows.items() if row.control.session_id not in session_ids}
            if len(kept) < len(rows):
                self._write(kept)

    def _read(self) -> dict[str, _Row]:
        """What the file holds now; one that is as it was is not read again."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            self._seen, self._rows = None, {}
            return self._rows
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen != self._seen:
            with open(self._path, "rb") as file:
                self._rows = {row.control.id: row for row in decode(file.read(), list[_Row])}
            self._seen = seen
        return self._rows

    def _write(self, rows: dict[str, _Row]) -> None:
        fresh = self._path + ".new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | BINARY
        descriptor = os.open(fresh, flags, 0o600)
        try:
            data = encode(list(rows.values()))
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(fresh, self._path)
        sync_folder(self._folder)
