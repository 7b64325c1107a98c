"""Erasing content from PostgreSQL's own files."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from time import monotonic

from ..contract import AgentError
from . import _postgres_sql as statements
from . import _sql
from ._blank import blobs_in, title_of
from ._postgres_address import Address
from ._postgres_link import Diagnostic, DriverError, Link, translate

_FIRST_NUMBER = re.compile(r"\d+")
_PATIENCE = 20.0
"""Seconds for transactions that began before to end: while one sees the old rows, the server keeps them."""
_TRIES = 3

_OTHERS = b"""
SELECT 1 WHERE pg_snapshot_xmin(pg_current_snapshot()) <= %(transaction)b::text::xid8
  OR EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND age(backend_xmin) >= age(%(transaction)b::text::xid8::xid))"""
"""Whether a transaction from before still runs: one that writes, in any database, or one here that reads."""


async def erase(
    address: Address, session_id: str, bodies: Mapping[int, bytes], named: set[int], link: Link
) -> None:
    """Put ``bodies`` in their places and leave no copy of the old ones in the tables' files.

    ``named``: sessions whose first entry is among them, which take their title from it.
    """
    kept: list[int] = []

    def hear(said: Diagnostic) -> None:
        kept.append(_still_needed(said.message_detail))

    async with link.unhurried(hear):
        transaction, tables = await _replace(session_id, bodies, named, link)
        deadline = monotonic() + _PATIENCE
        for _ in range(_TRIES):
            await _outwait(transaction, deadline, link)
            kept.clear()
            await _rewrite(address, tables, link)
            if not any(kept):
                return
        raise AgentError(
            "SessionBusy",
            f"{address.label}: the content is erased, but a transaction that began before still sees the old "
            "rows, so the tables keep them; end it (pg_stat_activity shows it) and purge again",
        )


async def _replace(
    session_id: str, bodies: Mapping[int, bytes], named: set[int], link: Link
) -> tuple[str, list[str]]:
    """The number of the transaction that did it, and the tables it changed."""
    names: set[str] = set()
    async with link.transaction():
        for place, body in bodies.items():
            old = await link.rows(statements.shared(_sql.READ_BODY), (place,))
            seq, key = place & _sql.LAST_SEQ, place >> _sql.SEQ_BITS
            if not old:
                raise AgentError("InvalidEntry", f"session {session_id!r} has no entry {seq} to erase")
            names |= blobs_in(old[0][0])
            await link.count(statements.shared(_sql.REPLACE_BODY), (body, place))
            if seq == 1 and key in named:
                title = title_of(body)
                await link.count(
                    statements.shared(_sql.RENAME), (None if title is None else title.encode(), key)
                )
        if names:
            await link.count(statements.DROP_UNUSED_BLOBS, (sorted(names),))
        rows = await link.rows(b"SELECT pg_current_xact_id()::text", ())
    tables = ["entries", *(["blobs"] if names else []), *(["sessions"] if named else [])]
    return rows[0][0], tables


async def _outwait(transaction: str, deadline: float, link: Link) -> None:
    pause = 0.01
    while await link.rows(_OTHERS, {"transaction": transaction}):
        if monotonic() > deadline:
            return
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.2)


async def _rewrite(address: Address, tables: list[str], link: Link) -> None:
    """A plain vacuum frees the old bytes and leaves them where they are; only a new file has none of them."""
    try:
        for table in tables:
            await link.script(f"VACUUM (FULL, VERBOSE) {table}")
    except DriverError as error:
        problem = translate(error, address, "write")
        raise AgentError(
            problem.code,
            f"the content is erased, but old copies may remain in the tables: {problem.message}; purge again",
            cause=error,
        ) from error


def _still_needed(detail: str | None) -> int:
    """``0 dead row versions cannot be removed yet`` and more, in the language of the server."""
    found = _FIRST_NUMBER.search(detail or "")
    return int(found.group()) if found else 0
