"""What every store answers for all sessions, over the few questions that each answers in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from ..contract import (
    STATUSES,
    AgentError,
    Clock,
    Entry,
    JsonObject,
    PendingApproval,
    PurgeEntry,
    RedactionEntry,
    RunStartedEntry,
    RunStatus,
    SessionDigest,
    SessionInfo,
    StoredEntry,
)
from ..system import SystemClock
from . import _base
from ._base import remember
from ._state import SessionState, digest_of, pending_in
from ._upcast import decode_log, first_version_is_current
from ._views import visible_entries

NOT_DUE = ("paused", "awaiting_human")
"""The statuses of an open run that no worker can continue."""

_PAGE = 200
_LAST_ENTRIES = 256


class Listed(NamedTuple):
    """A row of a list of sessions; without ``known`` its log has to be folded first."""

    info: SessionInfo
    known: bool


class Query(NamedTuple):
    """What ``Store.sessions`` was asked for. ``after``: time of the last change, and id, of a session."""

    status: RunStatus | None = None
    since: str | None = None
    until: str | None = None
    title: str | None = None
    metadata: JsonObject | None = None
    parent: str | None = None
    after: tuple[str, str] | None = None

    def fits(self, info: SessionInfo) -> bool:
        return (
            self.fits_place(info)
            and (self.status is None or info.status == self.status)
            and (self.title is None or self.title.casefold() in (info.title or "").casefold())
            and all(
                (info.metadata or {}).get(key, _MISSING) == value
                for key, value in (self.metadata or {}).items()
            )
        )

    def fits_place(self, info: SessionInfo) -> bool:
        """Without what only a digest tells."""
        return (
            (self.since is None or info.updated_at >= self.since)
            and (self.until is None or info.updated_at <= self.until)
            and (self.parent is None or info.parent_session_id == self.parent)
            and (self.after is None or (info.updated_at, info.session_id) < self.after)
        )

    @property
    def about_content(self) -> bool:
        return self.status is not None or self.title is not None or bool(self.metadata)


_MISSING = object()


class StoreBase:
    """``load`` over ``read``, the questions about all sessions, and the time leases are measured in."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._current: set[str] = set()
        self._unreadable: dict[str, int] = {}
        self._digests: dict[str, tuple[int, str, SessionDigest]] = {}

    # What each store does its own way

    async def _list(self, query: Query, limit: int | None) -> list[Listed]:
        """The next sessions in order, the last changed first. Those that are known to fit, and those that
        are not known yet; ``query.fits`` has the last word."""
        raise NotImplementedError

    async def _unfolded(self) -> list[SessionInfo]:
        """Sessions without a digest."""
        raise NotImplementedError

    async def _keep_digests(self, folded: Sequence[tuple[SessionInfo, SessionDigest]]) -> None:
        """Write down the digest of each log as it is with ``info.entries`` entries, if it still is so."""

    async def _waiting(self) -> list[SessionInfo]:
        """Sessions that are known to have a pending approval."""
        raise NotImplementedError

    async def _due(self, limit: int, now: str) -> list[str]:
        """``due`` among the sessions that have a digest."""
        raise NotImplementedError

    # Questions about all sessions

    async def sessions(
        self,
        *,
        status: RunStatus | None = None,
        since: str | None = None,
        until: str | None = None,
        title: str | None = None,
        metadata: JsonObject | None = None,
        parent: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[SessionInfo]:
        if status is not None and status not in STATUSES:
            raise AgentError("ConfigInvalid", f"status is {status!r}; choose one of {', '.join(STATUSES)}")
        _check_limit(limit)
        query = Query(
            status, _time("since", since), _time("until", until), title, metadata, parent, _cursor(after)
        )
        found: list[SessionInfo] = []
        size = None if limit is None else max(limit, _PAGE if query.about_content else 1)
        while limit is None or len(found) < limit:
            page = await self._list(query, size)
            folded = await self._fold([info for info, known in page if not known])
            for info, known in page:
                told = info if known else folded.get(info.session_id)
                if query.fits(told or info) and (told is not None or not query.about_content):
                    found.append(told or info)
            if size is None or len(page) < size:
                break
            last = page[-1].info
            query = query._replace(after=(last.updated_at, last.session_id))
        return found if limit is None else found[:limit]

    async def pending(self, *, limit: int | None = None) -> list[PendingApproval]:
        _check_limit(limit)
        folded = await self._fold_all()
        waiting = {info.session_id: info for info in [*folded, *await self._waiting()] if info.pending}
        found: list[PendingApproval] = []
        for info in waiting.values():
            try:
                found += await self._pending_of(info)
            except AgentError as error:
                if error.code not in ("SessionNotFound", "SessionCorrupt", "SessionMigrationFailed"):
                    raise
        found.sort(key=lambda each: (each.requested_at, each.entry_id))
        return found if limit is None else found[:limit]

    async def due(self, limit: int, *, now: str) -> list[str]:
        _check_limit(limit)
        await self._fold_all()
        return await self._due(limit, exact_time("now", now))

    async def _fold_all(self) -> list[SessionInfo]:
        return list((await self._fold(await self._unfolded())).values())

    async def _fold(self, infos: Sequence[SessionInfo]) -> dict[str, SessionInfo]:
        """These by id, with what their logs add up to; those that cannot be read are left out."""
        found: dict[str, SessionInfo] = {}
        fresh: list[tuple[SessionInfo, SessionDigest]] = []
        for info in infos:
            kept = self._digests.get(info.session_id)
            if kept is not None and kept[:2] == (info.entries, info.updated_at):
                digest = kept[2]
            elif (digest := await self._digest_of(info)) is not None:
                remember(self._digests, info.session_id, (info.entries, info.updated_at, digest))
                fresh.append((info, digest))
            else:
                continue
            found[info.session_id] = with_digest(info, digest)
        if fresh:
            await self._keep_digests(fresh)
        return found

    async def _digest_of(self, info: SessionInfo) -> SessionDigest | None:
        if self._unreadable.get(info.session_id) == info.entries:
            return None
        try:
            return digest_of(SessionState.of(await self.load(info.session_id)))
        except AgentError as error:
            if error.code in ("SessionCorrupt", "SessionMigrationFailed"):
                remember(self._unreadable, info.session_id, info.entries)
            elif error.code != "SessionNotFound":
                raise
            return None

    async def _pending_of(self, info: SessionInfo) -> list[PendingApproval]:
        """Its questions lie after the start of the open run, which is near the end of the log."""
        count = _LAST_ENTRIES
        while True:
            after = max(info.entries - count, 0)
            entries = await self.load(info.session_id, after=after)
            if after and any(isinstance(entry, RedactionEntry | PurgeEntry) for entry in entries):
                entries, after = await self.load(info.session_id), 0  # what is hidden, the whole log tells
            if after == 0 or any(
                isinstance(entry, RunStartedEntry) and entry.run_id == info.run_id for entry in entries
            ):
                return pending_in(info.session_id, SessionState.of(visible_entries(entries)))
            count *= 4

    async def read(self, session_id: str, *, after: int = 0, upto: int | None = None) -> list[StoredEntry]:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def load(self, session_id: str, *, after: int = 0) -> list[Entry]:
        """The log after entry ``after``, decoded and migrated to the current schema."""
        if after and session_id not in self._current:
            head = await self._bodies(session_id, 0, 1)
            if not head or not first_version_is_current(head[0]):
                # An old log: what version an entry has is told by the headers before it.
                return (await self.load(session_id))[after:]
            if len(self._current) >= _base.KNOWN_SESSIONS:
                self._current.clear()
            self._current.add(session_id)
        return await self._decode(session_id, await self._bodies(session_id, after, None), after)

    async def _bodies(self, session_id: str, after: int, upto: int | None) -> list[bytes]:
        return [stored.body for stored in await self.read(session_id, after=after, upto=upto)]

    async def _decode(self, session_id: str, bodies: Sequence[bytes], after: int) -> list[Entry]:
        return decode_log(session_id, bodies, after=after)

    def _now(self) -> float:
        return datetime.fromisoformat(self._clock.now()).timestamp()


def with_digest(info: SessionInfo, digest: SessionDigest) -> SessionInfo:
    return msgspec.structs.replace(
        info,
        status=digest.status,
        run_id=digest.run_id,
        pending=digest.pending,
        title=digest.title if digest.title is not None else info.title,
        metadata=digest.metadata,
        about=digest.about,
    )


def exact_time(field: str, text: str) -> str:
    """A time as entries spell it, so that texts compare as times do. Raises ``ConfigInvalid``."""
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise AgentError(
            "ConfigInvalid", f"{field} is {text!r}; write an ISO-8601 time, as 2026-01-31T12:00:00Z"
        ) from None
    found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _time(field: str, text: str | None) -> str | None:
    return None if text is None else exact_time(field, text)


def _check_limit(limit: int | None) -> None:
    if limit is not None and (type(limit) is not int or limit < 0):
        raise AgentError("ConfigInvalid", f"limit is {limit!r}; give a whole number from 0, or None for all")


def _cursor(after: str | None) -> tuple[str, str] | None:
    if after is None:
        return None
    time, space, session_id = after.partition(" ")
    if not space:
        raise AgentError(
            "ConfigInvalid", f"after is {after!r}; give the cursor of the last session of the page before"
        )
    return time, session_id
