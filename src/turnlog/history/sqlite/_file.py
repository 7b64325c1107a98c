"""Opening an SQLite file as ours, and what its errors mean. apsw loads here, when a file is first used."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, cast

from ...contract import AgentError
from .. import _sql
from .._base import sync_folder

APPLICATION_ID = 0x74726E6C  # "trnl"
FORMAT_VERSION = 2
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


_SECOND = (
    "ALTER TABLE sessions ADD COLUMN status TEXT",
    "ALTER TABLE sessions ADD COLUMN is_open INTEGER",
    "ALTER TABLE sessions ADD COLUMN pending INTEGER",
    "ALTER TABLE sessions ADD COLUMN digest BLOB",
    "ALTER TABLE sessions ADD COLUMN wake_at TEXT",
    # The highest key that a deleted session had: a key that somebody may still remember is not used again.
    "CREATE TABLE last_key (key INTEGER NOT NULL)",
    "INSERT INTO last_key VALUES (0)",
    *_sql.CONTROLS,
)
_MIGRATIONS: tuple[tuple[str, ...], ...] = (_sql.TABLES, _SECOND)
"""What leads from each version of the file to the next; forward only."""

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
        current = _check_ours(connection, path) == FORMAT_VERSION
        _switch_to_wal(connection, busy_timeout)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
        if not current:
            _make_tables(connection, path)
        connection.execute(_sql.SNAPSHOTS.format(**_DIALECT))
        _check_index(connection, path)
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
    connection: Connection | None = None
    try:
        connection, version = _connect(path, busy_timeout)
        if version == 0:
            connection.close()
            return None
        if version < FORMAT_VERSION:
            try:
                open_writer(path, busy_timeout).close()
            except AgentError:  # it can only be read; what is new in the tables is empty for it
                for statement in _OLDER:
                    connection.execute(statement)
        connection.execute("PRAGMA query_only = ON")
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, apsw.Error):
            raise translate(error, path, "read") from error
        raise
    return connection


_OLDER = (
    "CREATE TEMP VIEW sessions AS SELECT *, NULL AS status, NULL AS is_open, NULL AS pending, "
    "NULL AS digest, NULL AS wake_at FROM main.sessions",
    "CREATE TEMP TABLE controls (place, session, body, answer)",
)
"""For a file of version 1 that cannot be brought up to date."""


def _connect(path: str, busy_timeout: float) -> tuple[Connection, int]:
    """A connection for reading, and the version of the file."""
    apsw = load_apsw()
    connection = cast("Connection", apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE))
    connection.set_busy_timeout(int(busy_timeout * 1000))
    try:
        return connection, _check_ours(connection, path)
    except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
        # A folder in which no side file can be made: nobody writes to the file there either.
        connection.close()
        if os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal"):
            raise AgentError(
                "SessionReadFailed",
                f"{path} cannot be read in a folder that is read-only while {path}-wal holds entries; copy "
                "both files to a folder that can be written to, and open the copy",
                cause=error,
                meta={"path": path},
            ) from error
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = cast("Connection", apsw.Connection(f"{Path(path).as_uri()}?immutable=1", flags=flags))
    return connection, _check_ours(connection, path)


def _make_file(path: str) -> None:
    """A new file belongs to its owner alone; SQLite gives its side files the same mode."""
    if os.path.exists(path):
        return
    folder = Path(path).resolve().parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    sync_folder(folder)


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
        found = _check_ours(connection, path)  # another process may have been faster
        for step in _MIGRATIONS[found:]:
            for statement in step:
                connection.execute(statement.format(**_DIALECT))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _check_index(connection: Connection, path: str) -> None:
    """A session that is there and not found by its id would be begun a second time."""
    lost = connection.execute(
        "SELECT a.id FROM sessions a NOT INDEXED WHERE NOT EXISTS "
        "(SELECT 1 FROM sessions b INDEXED BY sqlite_autoindex_sessions_1 WHERE b.id = a.id) LIMIT 1"
    ).fetchone()
    if lost is not None:
        raise AgentError(
            "SessionCorrupt",
            f"{path} is damaged: session {lost[0]!r} is in it and not found by its id; restore the file from "
            "a backup, or save what is readable with `sqlite3 FILE .recover`",
            meta={"path": path},
        )


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
        case apsw.ConstraintError():
            return AgentError(
                "InvalidEntry",
                f"{path}: an entry has an id that another entry of this store has; ids must be unique "
                "everywhere: check the id source",
                cause=error,
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
