"""Reading and writing the files of a JSONL store; everything here runs on its thread."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, unquote

from ...contract import (
    AgentError,
    Lease,
    SessionInfo,
    StoredEntry,
    Tail,
    digest,
    read_envelope,
)
from .._base import (
    check_free,
    exists_already,
    fork_beyond,
    forks_left,
    hides,
    is_repeat,
    moved_on,
    no_blob,
    not_found,
    remember,
    sync_folder,
)
from .._blank import blobs_in
from .._rows import Controls, LeaseRow
from ._file import FORMAT_VERSION, ForkPoint, Header, LogFile, render_batch
from ._lock import BINARY, ControlFile, locked, read_lease, write_lease

F = TypeVar("F", bound=Callable[..., Any])
_FileState: TypeAlias = tuple[int, int, int]
"""Inode, size and time of the last change."""
_KNOWN_LOGS = 256
"""Of how many files the places of all entries are remembered."""
_BLOB_NAME = re.compile(r"sha256-[0-9a-f]{64}")
_fdatasync = getattr(os, "fdatasync", os.fsync)


def _writing(method: F) -> F:
    """Operating system errors on the way out of ``method`` mean that the medium refused."""

    @wraps(method)
    def guarded(self: Folder, *args: Any) -> Any:
        try:
            return method(self, *args)
        except OSError as error:
            raise self.refused(error, "SessionWriteFailed") from error

    return guarded  # pyright: ignore[reportReturnType]


def _reading(method: F) -> F:
    @wraps(method)
    def guarded(self: Folder, *args: Any) -> Any:
        try:
            return method(self, *args)
        except OSError as error:
            raise self.refused(error, "SessionReadFailed") from error

    return guarded  # pyright: ignore[reportReturnType]


class Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs: dict[str, LogFile] = {}
        self._infos: dict[str, tuple[_FileState, SessionInfo]] = {}
        self._controls = ControlFile(str(folder))

    # Entries

    @_writing
    def append(
        self,
        session_id: str,
        batch: Sequence[StoredEntry],
        expected_tail: int,
        lease: Lease | None,
        until: float,
        blobs: Sequence[bytes] = (),
    ) -> None:
        with ExitStack() as locks:
            if blobs:
                locks.enter_context(self._blobs_locked())
            lock = locks.enter_context(self._locked(session_id))
            row = read_lease(lock)
            row.check(lease)
            log = self._look(session_id)
            if log.tail != expected_tail or (expected_tail == 0 and log.exists):
                if self._holds(log, batch):
                    return
                raise moved_on(session_id, expected_tail, log.tail)
            for data in blobs:
                self.put_blob(f"sha256-{digest(data)}", data)
            if hides(batch):  # first: a crash in between only loses it
                self._drop_snapshot(session_id)
            header = None if log.exists else Header(turnlog=FORMAT_VERSION, session=session_id)
            self._write(log, render_batch([stored.body for stored in batch], batch[-1].seq, header))
            if lease is not None:
                row.until = until
                write_lease(lock, row)

    @_reading
    def read(self, session_id: str, after: int, upto: int | None) -> list[StoredEntry]:
        log = self._existing(session_id)
        return [_stored(body) for body in self._bodies(log, after, log.tail if upto is None else upto)]

    @_reading
    def tail(self, session_id: str) -> Tail | None:
        log = self._look(session_id)
        return Tail(seq=log.tail, id=log.tail_id, hash=log.tail_hash) if log.exists else None

    @_reading
    def sessions(self) -> list[SessionInfo]:
        if not self._folder.is_dir():
            self._check_folder()
            return []
        infos = [self._info(unquote(path.stem), path) for path in self._folder.glob("*.jsonl")]
        return [info for info in infos if info is not None]

    def _info(self, session_id: str, path: Path) -> SessionInfo | None:
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        state = (found.st_ino, found.st_size, found.st_mtime_ns)
        known = self._infos.get(session_id)
        if known is not None and known[0] == state:
            return known[1]
        try:
            log = self._look(session_id)
        except AgentError:  # one damaged file must not hide the others
            return SessionInfo(session_id=session_id, entries=0, created_at="", updated_at="")
        if not log.exists:
            return None
        info = SessionInfo(
            session_id=session_id,
            entries=log.tail,
            created_at=log.created_at,
            updated_at=log.updated_at,
            title=log.title,
            parent_session_id=log.fork.source if log.fork else None,
            forked_at=log.fork.at if log.fork else None,
        )
        remember(self._infos, session_id, (state, info))
        return info

    @_writing
    def fork(self, source: str, at: int, target: str, first: Sequence[StoredEntry]) -> None:
        past = self._existing(source)
        if not 0 < at <= past.tail:
            raise fork_beyond(source, at, past.tail)
        shared = read_envelope(self._bodies(past, at - 1, at)[0])
        with self._locked(target):
            log = self._look(target)
            if log.exists:
                if log.fork and log.fork.source == source and self._holds(log, first):
                    return
                raise exists_already(target)
            point = ForkPoint(source=source, at=at, hash=shared.hash)
            header = Header(turnlog=FORMAT_VERSION, session=target, fork=point)
            self._write(log, render_batch([stored.body for stored in first], first[-1].seq, header))

    @_writing
    def erase(self, session_id: str, bodies: Mapping[int, bytes]) -> None:
        by_owner: dict[str, dict[int, bytes]] = {}
        for seq, body in bodies.items():
            by_owner.setdefault(self._owner(session_id, seq), {})[seq] = body
        with ExitStack() as locks:
            locks.enter_context(self._blobs_locked())
            for owner in sorted(by_owner):
                locks.enter_context(self._locked(owner))
            for info in self.sessions():  # of forks too: they may hold words of a past that they share
                self._drop_snapshot(info.session_id)
            self._erase([(self._look(owner), changed) for owner, changed in by_owner.items()])

    @_writing
    def delete(self, session_id: str, forks: bool, lease: Lease | None, now: float) -> None:
        self._existing(session_id)
        infos = self.sessions()
        family = [session_id]
        for member in family:
            family += [info.session_id for info in infos if info.parent_session_id == member]
        if len(family) > 1 and not forks:
            raise forks_left(session_id, family[1:])
        with ExitStack() as locks:
            locks.enter_context(self._blobs_locked())
            for member in sorted(family):
                row = read_lease(locks.enter_context(self._locked(member)))
                check_free(row.owner, row.until - now, member, lease)
            names: set[str] = set()
            for member in family:
                log = self._existing(member)
                for body in self._own_bodies(log, 0, len(log.spans)):
                    names |= blobs_in(body)
            gone = {Path(self._path(member, ".jsonl")) for member in family}
            self._drop_unused(names, [path for path in self._folder.glob("*.jsonl") if path not in gone])
            for member in reversed(family):  # a fork before what it was forked from
                os.unlink(self._path(member, ".jsonl"))
                self._logs.pop(member, None)
                self._infos.pop(member, None)
            for member in family:
                self._drop_snapshot(member)
                os.unlink(self._path(member, ".lock"))
            sync_folder(self._folder)
        if self._controls.read().rows:
            self._controls.change(lambda queue: queue.drop(family))

    def _drop_unused(self, names: set[str], kept: Sequence[Path]) -> None:
        """Drop the stored bytes of these that no entry in the files ``kept`` names."""
        gone = set(names)
        for path in kept if gone else ():
            gone -= blobs_in(path.read_bytes())
        for name in gone:
            (self._folder / "blobs" / name).unlink(missing_ok=True)

    def _erase(self, logs: Sequence[tuple[LogFile, Mapping[int, bytes]]]) -> None:
        """The logs that name the blobs go last: who is stopped half way and does it again finds them."""
        names: set[str] = set()
        fresh: dict[Path, Path] = {}
        for log, changed in logs:
            path, gone = self._write_anew(log, changed)
            fresh[Path(log.path)] = path
            names |= gone
        self._drop_unused(names, [fresh.get(path, path) for path in self._folder.glob("*.jsonl")])
        for log, _ in logs:
            os.replace(fresh[Path(log.path)], log.path)
            self._logs.pop(log.session_id, None)
        sync_folder(self._folder)

    def _write_anew(self, log: LogFile, changed: Mapping[int, bytes]) -> tuple[Path, set[str]]:
        """The log with other bodies, in a file beside it; and the blobs of those that went."""
        names: set[str] = set()
        bodies = self._own_bodies(log, 0, len(log.spans))
        for seq, body in changed.items():
            place = seq - log.base - 1
            names |= blobs_in(bodies[place])
            bodies[place] = body
        parts: list[bytes] = []
        start, header = 0, log.header
        for last in log.batches:
            parts.append(render_batch(bodies[start : last - log.base], last, header))
            start, header = last - log.base, None
        fresh = log.path + ".new"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | BINARY, 0o600)
        try:
            _write_all(descriptor, b"".join(parts))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return Path(fresh), names

    # Blobs

    @_writing
    def put_blob(self, name: str, data: bytes) -> None:
        path = self._folder / "blobs" / name
        if path.exists():
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_name(f"{name}.{os.getpid()}.new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | BINARY, 0o600)
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        except OSError:
            os.unlink(fresh)
            raise
        finally:
            os.close(descriptor)
        os.replace(fresh, path)
        sync_folder(path.parent)

    @_reading
    def get_blob(self, name: str) -> bytes:
        try:
            if not _BLOB_NAME.fullmatch(name):
                raise no_blob(name)
            return (self._folder / "blobs" / name).read_bytes()
        except FileNotFoundError:
            raise no_blob(name) from None

    # Snapshots

    @_reading
    def read_snapshot(self, session_id: str) -> bytes | None:
        try:
            return Path(self._path(session_id, ".snapshot")).read_bytes()
        except FileNotFoundError:
            return None

    @_writing
    def write_snapshot(self, session_id: str, seq: int, hash: str, data: bytes) -> None:
        """Not forced to the disk: one that a power loss cuts is noticed by its digest."""
        with self._locked(session_id):
            log = self._look(session_id)
            if not log.exists or (log.tail, log.tail_hash) != (seq, hash):
                return
            fresh = self._path(session_id, ".snapshot.new")
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | BINARY, 0o600)
            try:
                _write_all(descriptor, data)
            finally:
                os.close(descriptor)
            os.replace(fresh, self._path(session_id, ".snapshot"))

    def _drop_snapshot(self, session_id: str) -> None:
        for ending in (".snapshot", ".snapshot.new"):
            with suppress(FileNotFoundError):
                os.unlink(self._path(session_id, ending))

    # Controls and leases

    @_writing
    def change_controls(self, change: Callable[[Controls], Any]) -> Any:
        self._check_folder()
        if not self._folder.is_dir():
            queue = Controls()
            value = change(queue)
            if not queue.rows:
                return value
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._controls.change(change)

    @_reading
    def controls(self) -> Controls:
        return self._controls.read()

    @_writing
    def change_lease(self, session_id: str, change: Callable[[LeaseRow], Any], make: bool) -> Any:
        if not make:
            self._existing(session_id)
        with self._locked(session_id) as lock:
            row = read_lease(lock)
            before = copy(row)
            value = change(row)
            if row != before:
                write_lease(lock, row)
            return value

    @_reading
    def lease(self, session_id: str) -> LeaseRow:
        """The lease as it is now, without waiting for a writer: one of its two slots is always whole."""
        try:
            descriptor = os.open(self._path(session_id, ".lock"), os.O_RDONLY | BINARY)
        except FileNotFoundError:
            return LeaseRow()
        try:
            return read_lease(descriptor)
        finally:
            os.close(descriptor)

    # Files

    def forget(self) -> None:
        self._logs.clear()

    def refused(self, error: OSError, code: str) -> AgentError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        what = "the disk is full" if full else str(error)
        hint = "nothing was written; " if code == "SessionWriteFailed" else ""
        return AgentError(
            code,
            f"{self._folder}: {what}; {hint}check free space and permissions",
            cause=error,
            meta={"path": str(self._folder)},
        )

    def _path(self, session_id: str, ending: str) -> str:
        name = quote(session_id, safe=" @+=,")
        return str(self._folder / f"{name.replace('.', '%2E')}{ending}")

    def _check_folder(self) -> None:
        if self._folder.exists() and not self._folder.is_dir():
            raise AgentError("ConfigInvalid", f"{self._folder} is a file; jsonl: takes a folder of its own")

    @contextmanager
    def _locked(self, session_id: str) -> Generator[int]:
        self._check_folder()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(self._path(session_id, ".lock")) as lock:
            yield lock

    @contextmanager
    def _blobs_locked(self) -> Generator[None]:
        """While it is held, nobody drops stored bytes that an append is about to name."""
        self._check_folder()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(str(self._folder / ".blobs.lock")):
            yield

    def _look(self, session_id: str) -> LogFile:
        """The file as it is now; only what was added since the last look is read."""
        path = self._path(session_id, ".jsonl")
        log = self._logs.get(session_id)
        try:
            descriptor = os.open(path, os.O_RDONLY | BINARY)
        except FileNotFoundError:
            return LogFile(path, session_id)
        try:
            found = os.fstat(descriptor)
            if log is None or found.st_ino != log.inode or found.st_size < log.end:
                log = LogFile(path, session_id, inode=found.st_ino)
            if found.st_size != log.end:
                self._logs.pop(session_id, None)  # what is read half way is of no use
                log.take_in(_read_all(descriptor, log.end, found.st_size))
        finally:
            os.close(descriptor)
        self._logs.pop(session_id, None)  # to the end: the one that was not looked at for longest goes first
        if len(self._logs) >= _KNOWN_LOGS:
            del self._logs[next(iter(self._logs))]
        self._logs[session_id] = log
        return log

    def _existing(self, session_id: str) -> LogFile:
        log = self._look(session_id)
        if not log.exists:
            raise not_found(session_id)
        return log

    def _write(self, log: LogFile, data: bytes) -> None:
        """Add ``data`` after the last complete batch, in the place of a torn tail, and wait for the disk."""
        new = not os.path.exists(log.path)
        descriptor = os.open(log.path, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
        try:
            if os.fstat(descriptor).st_size > log.end:
                os.ftruncate(descriptor, log.end)
            os.lseek(descriptor, log.end, os.SEEK_SET)
            try:
                _write_all(descriptor, data)
                _fdatasync(descriptor)
            except OSError:
                with suppress(OSError):  # else it is a torn tail, which counts for nothing
                    os.ftruncate(descriptor, log.end)
                raise
        finally:
            os.close(descriptor)
        if new:
            sync_folder(self._folder)

    def _bodies(self, log: LogFile, after: int, upto: int) -> list[bytes]:
        parts: list[list[bytes]] = []
        upto = min(upto, log.tail)
        while True:
            parts.append(self._own_bodies(log, max(after - log.base, 0), max(upto - log.base, 0)))
            if log.fork is None or after >= log.base:
                return [body for part in reversed(parts) for body in part]
            upto = min(upto, log.base)
            log = self._existing(log.fork.source)

    def _own_bodies(self, log: LogFile, first: int, last: int) -> list[bytes]:
        if first >= last:
            return []
        spans = log.spans[first:last]
        low = spans[0][0]
        descriptor = os.open(log.path, os.O_RDONLY | BINARY)
        try:
            data = _read_all(descriptor, low, spans[-1][1])
        finally:
            os.close(descriptor)
        return [data[start - low : stop - low] for start, stop in spans]

    def _holds(self, log: LogFile, batch: Sequence[StoredEntry]) -> bool:
        first, last = batch[0].seq - 1, batch[-1].seq
        if first < log.base or last > log.tail:
            return False
        return is_repeat(batch, (_stored(body).id for body in self._bodies(log, first, last)))

    def _owner(self, session_id: str, seq: int) -> str:
        log = self._existing(session_id)
        while log.fork is not None and seq <= log.base:
            log = self._existing(log.fork.source)
        if not log.base < seq <= log.tail:
            raise AgentError("InvalidEntry", f"session {session_id!r} has no entry {seq} to erase")
        return log.session_id


def _stored(body: bytes) -> StoredEntry:
    envelope = read_envelope(body)
    return StoredEntry(envelope.seq, envelope.id, envelope.kind, body)


def _read_all(descriptor: int, start: int, stop: int) -> bytes:
    os.lseek(descriptor, start, os.SEEK_SET)
    parts: list[bytes] = []
    while start < stop and (part := os.read(descriptor, stop - start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
