"""Erasing content from PostgreSQL's own files."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import TypeAlias

from ...contract import AgentError, Lease
from .. import _sql
from .._base import check_free, forks_left, not_found
from .._blank import blobs_in, title_of
from . import _statements as statements
from ._address import Address
from ._link import Diagnostic, DriverError, Link, translate

Changed: TypeAlias = list[str]
"""The tables that were changed."""

_FIRST_NUMBER = re.compile(r"\d+")
_PATIENCE = 20.0
"""Seconds for transactions that began before to end: while one sees the old rows, the server keeps them."""
_TRIES = 3

_OTHERS = b"""
SELECT 1 WHERE pg_snapshot_xmin(pg_current_snapshot()) <= %(transaction)b::text::xid8
  OR EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND age(backend_xmin) >= age(%(transaction)b::text::xid8::xid))"""
"""Whether a transaction from before still runs: one that writes, in any database, or one here that reads."""


async def rewritten(address: Address, change: Callable[[Link], Awaitable[Changed]], link: Link) -> None:
    """Make a ``change`` in one transaction, and leave no copy of what it replaced in the tables' files."""
    kept: list[int] = []

    def hear(said: Diagnostic) -> None:
        kept.append(_still_needed(said.message_detail))

    async with link.unhurried(hear):
        async with link.transaction():
            tables = await change(link)
            transaction = (await link.rows(b"SELECT pg_current_xact_id()::text", ()))[0][0]
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


async def erase(session_id: str, bodies: Mapping[int, bytes], named: set[int], link: Link) -> Changed:
    """Put ``bodies`` in their places. ``named``: sessions whose first entry is among them, which take their
    title from it."""
    names: set[str] = set()
    for place, body in bodies.items():
        old = await link.rows(statements.shared(_sql.READ_BODY), (place,))
        seq, key = place & _sql.LAST_SEQ, place >> _sql.SEQ_BITS
        if not old:
            raise AgentError("InvalidEntry", f"session {session_id!r} has no entry {seq} to erase")
        names |= blobs_in(old[0][0])
        await link.count(statements.shared(_sql.REPLACE_BODY), (body, place))
        if seq == 1 and key in named:
            title = title_of(body)
            await link.count(statements.shared(_sql.RENAME), (None if title is None else title.encode(), key))
    for key in {place >> _sql.SEQ_BITS for place in bodies}:  # digests may hold words of it
        await link.count(statements.shared(_sql.FORGET_DIGESTS), (key,))
    await _drop_unused(names, link)
    return ["entries", "sessions", *(["blobs"] if names else [])]


async def delete(session_id: str, forks: bool, lease: Lease | None, now: float | None, link: Link) -> Changed:
    rows = await link.rows(statements.LOCK_SESSION, (session_id,))
    if not rows or rows[0][1] == 0:
        raise not_found(session_id)
    top = rows[0][0]
    family = await link.rows(statements.shared(_sql.FIND_FAMILY), (top,))
    if len(family) > 1 and not forks:
        raise forks_left(session_id, [id for key, id, _, _ in family if key != top])
    keys = [key for key, _, _, _ in family]
    await link.rows(statements.LOCK_SESSIONS, (keys,))
    names: set[str] = set()
    for key, id, owner, _ in family:
        left = await link.rows(statements.SECONDS_LEFT, (now, key))
        check_free(owner, left[0][0] if left else 0.0, id, lease)
        span = (_sql.place(key, 0), _sql.place(key, _sql.LAST_SEQ))
        for row in await link.rows(statements.NAMING_BODIES, span):
            names |= blobs_in(row[0])
        await link.count(statements.shared(_sql.DROP_ENTRIES), span)
    await link.count(statements.DELETE_SESSIONS, (keys,))
    await link.count(statements.DELETE_CONTROLS, ([id for _, id, _, _ in family],))
    await _drop_unused(names, link)
    return ["entries", "sessions", "controls", *(["blobs"] if names else [])]


async def _drop_unused(names: set[str], link: Link) -> None:
    if names:
        await link.script(statements.LOCK_BLOBS)
        await link.count(statements.DROP_UNUSED_BLOBS, (sorted(names),))


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
