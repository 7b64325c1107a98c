"""Opening an SQLite file as ours, and what its errors mean. apsw loads here, when a file is first used."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, cast

from ..contract import AgentError
from . import _sql

APPLICATION_ID = 0x74726E6C  # "trnl"
FORMAT_VERSION = 1
_OLDEST_SQLITE = (3, 51, 3)  # before it, two connections could damage the write-ahead log
_DIALECT = {"serial": "INTEGER PRIMARY KEY", "place": "INTEGER PRIMARY KEY", "bytes": "BLOB"}


class Rows(Protocol):
    def __iter__(self) -> Iterator[Any]: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """What we use of an apsw connection."""

    in_transaction: bool

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Rows: ...

    def executemany(self, sql: str, values: Iterable[Sequence[Any]], /) -> Rows: ...

    def changes(self) -> int: ...

    def last_insert_rowid(self) -> int: ...

    def set_busy_timeout(self, milliseconds: int, /) -> None: ...

    def wal_checkpoint(self, *, mode: int) -> tuple[int, int]: ...

    def close(self) -> None: ...


def load_apsw() -> Any:
    try:
        import apsw
    except ImportError as error:
        raise AgentError(
            "PluginMissing", "the SQLite store needs apsw: pip install 'apsw>=3.54'", cause=error
        ) from error
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")[:3]) < _OLDEST_SQLITE:
        raise AgentError(
            "PluginMissing",
            f"apsw brings SQLite {version}, which can damage its log; pip install -U 'apsw>=3.54'",
        )
    return apsw


FileId: TypeAlias = tuple[int, int]


def file_id(path: str) -> FileId | None:
    """Which file is at ``path`` now; None when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def taken_away(path: str, doing: Literal["read", "write"]) -> AgentError:
    """The file that was opened is not the one at ``path`` any more: what is written to it is lost."""
    what = "replaced by another file" if os.path.exists(path) else "deleted or moved"
    code = "SessionWriteFailed" if doing == "write" else "SessionReadFailed"
    return AgentError(
        code,
        f"{path} was {what} while it was open, so this was not {'written' if doing == 'write' else 'read'}; "
        "put it back, or begin anew",
        meta={"path": path},
    )


def open_writer(path: str, busy_timeout: float) -> Connection:
    """The file at ``path``, made and given its tables where it is new, ready for durable writes."""
    apsw = load_apsw()
    try:
        _make_file(path)
        connection = cast("Connection", apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE))
    except (OSError, apsw.Error) as error:
        raise translate(error, path, "write") from error
    try:
        connection.set_busy_timeout(int(busy_timeout * 1000))
        new = _check_ours(connection, path) == 0
        _switch_to_wal(connection, busy_timeout)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
        if new:
            _make_tables(connection, path)
    except BaseException as error:
        connection.close()
        if isinstance(error, apsw.Error):
            raise translate(error, path, "write") from error
        raise
    return connection


def open_reader(path: str, busy_timeout: float) -> Connection | None:
    """The file at ``path`` for reading, or None while there is nothing in it to read."""
    apsw = load_apsw()
    if not os.path.exists(path):
        return None
    try:
        connection = cast("Connection", apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE))
    except apsw.Error as error:
        raise translate(error, path, "read") from error
    try:
        connection.set_busy_timeout(int(busy_timeout * 1000))
        if _check_ours(connection, path) == 0:
            connection.close()
            return None
        connection.execute("PRAGMA query_only = ON")
    except BaseException as error:
        connection.close()
        if isinstance(error, apsw.Error):
            raise translate(error, path, "read") from error
        raise
    return connection


def _make_file(path: str) -> None:
    """A new file belongs to its owner alone; SQLite gives its side files the same mode."""
    if os.path.exists(path):
        return
    folder = Path(path).resolve().parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make a new name in ``folder`` survive a power loss."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_ours(connection: Connection, path: str) -> int:
    """The format version of the file, 0 for an empty one; anything else is refused untouched."""
    application, version, tables = connection.execute(
        "SELECT (SELECT application_id FROM pragma_application_id), "
        "(SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)"
    ).fetchone()
    if application == 0 and tables == 0:
        return 0
    if application != APPLICATION_ID:
        raise AgentError(
            "SessionCorrupt",
            f"{path} is an SQLite database of something else; give turnlog a file of its own",
            meta={"path": path},
        )
    if version > FORMAT_VERSION:
        raise AgentError(
            "SessionMigrationFailed",
            f"{path} was made by a newer turnlog (store format {version}, this one knows up to "
            f"{FORMAT_VERSION}); upgrade turnlog to use it (nothing was changed)",
            meta={"path": path, "found": version, "supported": FORMAT_VERSION},
        )
    return version


def _switch_to_wal(connection: Connection, busy_timeout: float) -> None:
    """The switch does not wait for locks by itself, and several processes may open a new file at once."""
    apsw = load_apsw()
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _make_tables(connection: Connection, path: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _check_ours(connection, path) == 0:  # else another process was faster
            for table in _sql.TABLES:
                connection.execute(table.format(**_DIALECT))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def translate(error: BaseException, path: str, doing: Literal["read", "write"]) -> AgentError:
    """What an SQLite or operating system error means to a caller."""
    if isinstance(error, AgentError):
        return error
    apsw = load_apsw()
    meta = {"path": path}
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return AgentError(
                "SessionBusy",
                f"{path} stayed locked by another process for the whole waiting time; try again",
                cause=error,
                meta=meta,
            )
        case apsw.NotADBError():
            return AgentError(
                "SessionCorrupt",
                f"{path} is not an SQLite database; name another file",
                cause=error,
                meta=meta,
            )
        case apsw.CorruptError():
            return AgentError(
                "SessionCorrupt",
                f"{path} is damaged ({error}); restore it from a backup, or save what is readable with "
                "`sqlite3 FILE .recover`",
                cause=error,
                meta=meta,
            )
        case apsw.FullError():
            what = "the disk is full"
        case _:
            what = str(error) or type(error).__name__
    code = "SessionWriteFailed" if doing == "write" else "SessionReadFailed"
    if os.path.isdir(path):
        words = f"{path} is a folder; name a file in it, as sqlite:{path}/sessions.db, or write jsonl:{path}"
        return AgentError(code, words, cause=error, meta=meta)
    hint = "nothing was written; " if doing == "write" else ""
    return AgentError(code, f"{path}: {what}; {hint}check free space and permissions", cause=error, meta=meta)
