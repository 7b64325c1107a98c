"""One connection to PostgreSQL, and what its errors mean. The driver loads here, on a store's first use."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, TypeAlias, TypeVar

from ...contract import AgentError
from ._address import Address

try:
    import psycopg
    from psycopg import errors
    from psycopg.abc import PQGen
    from psycopg.conninfo import conninfo_to_dict
except ImportError as missing:
    raise AgentError(
        "PluginMissing",
        f"the PostgreSQL store needs psycopg: pip install 'turnlog[postgres]' ({missing})",
        cause=missing,
    ) from missing

Doing: TypeAlias = Literal["read", "write"]
Values: TypeAlias = Sequence[Any] | Mapping[str, Any]
T = TypeVar("T")

DriverError: TypeAlias = psycopg.Error
Diagnostic: TypeAlias = errors.Diagnostic
_GRACE = 10.0
"""Seconds that the client waits longer than the server's own limit for a statement."""
_LOOK = 1.0  # while it waits for an answer, a look at the clock and the socket every so many seconds


class _Connection(psycopg.AsyncConnection[Any]):
    """Gives up on a server that accepts and then says nothing, which no setting of the server can notice."""

    limit: float | None = None
    _pool = None
    """To the driver it is one of a pool: a store that is no longer used takes its connections with it."""

    async def wait(self, gen: PQGen[T], interval: float = _LOOK, timeout: float | None = None) -> T:
        return await super().wait(gen, _LOOK, self.limit if timeout is None else timeout)


class Link:
    """A connection in autocommit mode, set up for our tables."""

    def __init__(self, connection: _Connection, habits: str) -> None:
        self._connection = connection
        self._habits = habits

    @classmethod
    async def open(cls, address: Address, *, timeout: float, lock_timeout: float) -> Link:
        """Raises the driver's error, or ``ConfigInvalid`` for a database that cannot keep our text."""
        connection = await _Connection.connect(
            address.dsn.reveal(),
            autocommit=True,
            client_encoding="utf8",
            fallback_application_name="turnlog",
            keepalives_idle=15,
            keepalives_interval=5,
            keepalives_count=3,
            **_defaults(address),
        )
        link = cls(connection, _settings(address.schema, timeout, lock_timeout))
        try:
            connection.limit = timeout + _GRACE
            await link.script(link._habits)
            encoding = connection.info.parameter_status("server_encoding")
            if encoding != "UTF8":
                raise AgentError(
                    "ConfigInvalid",
                    f"{address.label}: the database is encoded in {encoding}; make one with ENCODING 'UTF8'",
                )
        except BaseException:
            link.drop()
            raise
        return link

    @property
    def lost(self) -> bool:
        """Whether it is of no more use."""
        return self._connection.closed or self._connection.info.transaction_status != _IDLE

    async def rows(self, sql: bytes, values: Values) -> list[Any]:
        cursor = await self._connection.execute(sql, values, prepare=True, binary=True)
        return [] if cursor.description is None else await cursor.fetchall()

    async def count(self, sql: bytes, values: Values) -> int:
        """Run it; how many rows it changed."""
        return (await self._connection.execute(sql, values, prepare=True)).rowcount

    async def script(self, sql: str) -> None:
        """Statements without values, not prepared."""
        await self._connection.execute(sql.encode())

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        return self._connection.transaction()

    @asynccontextmanager
    async def unhurried(self, hear: Callable[[Diagnostic], None]) -> AsyncGenerator[None, None]:
        """Whatever takes its time, inside; ``hear`` gets what the server says meanwhile."""
        connection = self._connection
        limit, connection.limit = connection.limit, None
        connection.add_notice_handler(hear)
        try:
            await self.script("SET statement_timeout = 0; SET client_min_messages = notice")
            yield
            await self.script(self._habits)
        except BaseException:
            self.drop()  # with settings that nobody else should meet
            raise
        connection.remove_notice_handler(hear)
        connection.limit = limit

    @property
    def driver(self) -> psycopg.AsyncConnection[Any]:
        return self._connection

    def drop(self) -> None:
        """Close it without a word to the event loop, which may be gone."""
        self._connection.pgconn.finish()


_IDLE = psycopg.pq.TransactionStatus.IDLE


def _defaults(address: Address) -> dict[str, Any]:
    """What the URL may say otherwise."""
    try:
        given = conninfo_to_dict(address.dsn.reveal())
    except psycopg.ProgrammingError as error:  # which may quote the whole URL, so it is not passed on
        raise AgentError(
            "ConfigInvalid", f"{address.label}: the store's URL cannot be read: {address.clean(_said(error))}"
        ) from None
    return {} if "connect_timeout" in given else {"connect_timeout": 10}


def _settings(schema: str, timeout: float, lock_timeout: float) -> str:
    return (
        f"SET search_path TO {schema}; "
        f"SET statement_timeout = {round(timeout * 1000)}; "
        f"SET lock_timeout = {round(lock_timeout * 1000)}; "
        f"SET idle_in_transaction_session_timeout = {round(timeout * 1000)}; "
        "SET default_transaction_isolation = 'read committed'; "
        "SET client_min_messages = warning; "
        "SET jit = off; "  # it takes longer than anything we ask
        # A higher setting, for standbys, is left as it is.
        "SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') = 'off'"
    )


def translate(error: BaseException, address: Address, doing: Doing) -> AgentError:
    """What a driver's error means to a caller."""
    if isinstance(error, AgentError):
        return error
    code: str = "SessionWriteFailed" if doing == "write" else "SessionReadFailed"
    nothing = "; nothing was written" if doing == "write" else ""
    match error:
        case errors.LockNotAvailable() | errors.DeadlockDetected():
            code, advice = "SessionBusy", "another transaction holds the lock; try again"
        case errors.TooManyConnections():
            code, advice = "SessionBusy", "wait for others to end, or raise max_connections of the server"
        case errors.QueryCanceled():
            advice = f"it took longer than the store's timeout{nothing}"
        case errors.InvalidPassword() | errors.InvalidAuthorizationSpecification():
            code, advice = "ConfigInvalid", _USER
        case errors.InvalidCatalogName():
            code, advice = "ConfigInvalid", "make the database first, or name another in the URL"
        case errors.InsufficientPrivilege():
            advice = f"grant the user what it needs, CREATE on the database to make the tables{nothing}"
        case errors.ReadOnlySqlTransaction():
            advice = "the server is read-only; name the primary, or add target_session_attrs=read-write"
        case errors.DiskFull() | errors.OutOfMemory():
            advice = f"the server has no room left{nothing}"
        case errors.UndefinedTable() | errors.UndefinedColumn() | errors.InvalidSchemaName():
            code, advice = "SessionCorrupt", "tables are missing or not ours; restore them from a backup"
        case errors.DataCorrupted() | errors.IndexCorrupted():
            code, advice = "SessionCorrupt", "the server says that its files are damaged; restore a backup"
        case errors.UniqueViolation():
            code, advice = "InvalidEntry", "ids must be unique everywhere: check the id source"
        case psycopg.DataError() | UnicodeError():
            code, advice = "InvalidEntry", "ids and kinds must be text without NUL"
        case psycopg.ProgrammingError() if error.sqlstate is None:
            code, advice = "ConfigInvalid", "check the store's URL"
        case psycopg.OperationalError() if (refused := _refusal(error)) is not None:
            code, advice = refused
        case psycopg.OperationalError() | psycopg.InterfaceError():
            advice = "check that the server runs and can be reached"
        case _:
            advice = f"see the server's log{nothing}"
    return AgentError(code, f"{address.label}: {address.clean(_said(error))}; {advice}", cause=error)


_USER = "check user and password (URL, PGPASSWORD or ~/.pgpass)"
_REFUSALS = {
    "password": ("ConfigInvalid", _USER),
    "authentication failed": ("ConfigInvalid", _USER),
    "pg_hba.conf": ("ConfigInvalid", "let the user in from here, in the server's pg_hba.conf"),
    "does not exist": ("ConfigInvalid", "make the role and the database first, or name others in the URL"),
    "too many clients": ("SessionBusy", "wait for others to end, or raise max_connections of the server"),
    "connection slots": ("SessionBusy", "wait for others to end, or raise max_connections of the server"),
}
"""A server that does not let us in says so in words alone, which the driver passes on without a code."""


def _refusal(error: psycopg.Error) -> tuple[str, str] | None:
    if error.sqlstate is not None:
        return None
    return next((meaning for words, meaning in _REFUSALS.items() if words in str(error)), None)


def _said(error: BaseException) -> str:
    """The first line that says something, without the driver's preamble."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return error.diag.message_primary
    if isinstance(error, errors._WaitTimeout):  # pyright: ignore[reportPrivateUsage]
        return "no answer came in time"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return _PREAMBLE.sub("", lines[0] if lines else type(error).__name__).rstrip(":")


_PREAMBLE = re.compile(r"^connection failed: (?:connection to server .*? failed: )?(?:FATAL: +)?")
