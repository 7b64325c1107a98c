"""What all stores share: checks before a write, what they refuse and with which words, and the questions
about all sessions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from types import CoroutineType
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec

from ..contract import (
    STATUSES,
    AgentError,
    Clock,
    Control,
    Entry,
    JsonObject,
    Lease,
    PendingApproval,
    PurgeEntry,
    RedactionEntry,
    RunStartedEntry,
    RunStatus,
    SessionDigest,
    SessionInfo,
    StoredEntry,
    Tail,
    find_unjson,
    read_envelope,
)
from ..system import SystemClock
from ._state import SessionState
from ._upcast import decode_log, first_version_is_current
from ._views import pending_in, visible_entries

MAX_SESSION_ID = 180
"""Bytes of UTF-8 a session id may take: it becomes a file name in a JSONL store."""
KNOWN_SESSIONS = 10_000
"""Of how many sessions a store remembers things that it could look up again."""
ANSWER_KEPT = 86_400.0
"""Seconds that an answer to a control waits for somebody to collect it."""

_TIME, _HEAD = b'"timestamp":"', 800
_HASH, _HASH_AT, _HASH_END = b'"hash":"', 66, 74

NO_TAIL = Tail(seq=0, id="", hash="")
"""Of a session without entries."""

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


def remember(cache: dict[K, V], key: K, value: V) -> None:
    """Keep what can be looked up again, of the last ``KNOWN_SESSIONS`` keys."""
    if len(cache) >= KNOWN_SESSIONS and key not in cache:
        del cache[next(iter(cache))]
    cache[key] = value


P = ParamSpec("P")


def uncut(begin: Callable[P, asyncio.Future[T]]) -> Callable[P, CoroutineType[Any, Any, T]]:
    """Makes a store's ``append`` or ``claim`` of a function that starts a write which nothing can cut in two.

    A caller then needs no task to protect the write from being cancelled: it waits for the future, which is
    an ``Uncut`` or done already. Such an ``append`` also takes ``release``: the lease is given back with the
    batch.
    """

    @wraps(begin)
    async def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        return await begin(*args, **kwargs)

    whole.begin = begin  # pyright: ignore[reportAttributeAccessIssue]
    return whole


def begins(method: Callable[..., Any]) -> Callable[..., asyncio.Future[Any]] | None:
    """What starts the write of a method that was made by ``uncut``; None for any other."""
    begin: Any = getattr(method, "begin", None)
    return None if begin is None else partial(begin, method.__self__)  # type: ignore[attr-defined]


def done(value: T) -> asyncio.Future[T]:
    """The future of a write that took no waiting."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future


def absolute(path: str | Path) -> str:
    """The absolute path: a store stays where it was named when the program changes its working directory."""
    try:
        return os.path.abspath(path)
    except OSError:  # the working directory is gone
        return str(path)


def sync_folder(folder: str | Path) -> None:
    """Make a new name in ``folder`` survive a power loss."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_session_id(session_id: str) -> None:
    if not isinstance(session_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise AgentError("InvalidEntry", f"a session id is text, not a {type(session_id).__name__}")
    size = len(session_id.encode("utf-8", "replace"))
    if not 0 < size <= MAX_SESSION_ID or not session_id.isprintable():
        raise AgentError(
            "InvalidEntry",
            f"the session id {session_id[:40]!r} cannot be used: it must have 1 to {MAX_SESSION_ID} bytes "
            "and no control characters",
        )


def check_batch(session_id: str, batch: Sequence[StoredEntry], expected_tail: int) -> None:
    """Refuse a batch that could not be a piece of a log, before anything is written."""
    check_session_id(session_id)
    if not batch:
        raise AgentError("InvalidEntry", f"an append to session {session_id!r} holds no entry")
    ids: set[str] = set()
    place = expected_tail
    for seq, id, _, _ in batch:
        place += 1
        if seq != place:
            raise AgentError(
                "InvalidEntry",
                f"entry {id!r} has seq {seq}, but {place} comes next in session "
                f"{session_id!r}; seal entries one after the other from the expected tail",
            )
        ids.add(id)
    if len(ids) != len(batch):
        raise AgentError("InvalidEntry", f"an append to session {session_id!r} uses an entry id twice")


def check_control(control: Control) -> None:
    check_session_id(control.session_id)
    if not control.id:
        raise AgentError("InvalidEntry", "a control needs an id")
    if found := find_unjson(control.data):
        raise AgentError("InvalidEntry", f"the data of control {control.id!r}: {found}")


def tail_of(batch: Sequence[StoredEntry]) -> tuple[str, str]:
    """Timestamp and hash of a batch's last entry."""
    body = batch[-1].body
    # As ``seal`` writes it, the hash comes last and the time before the payload, however long that is.
    start = body.find(_TIME, 0, _HEAD) + len(_TIME)
    if start >= len(_TIME) and body[-_HASH_END:-_HASH_AT] == _HASH and body[-2:] == b'"}':
        stop = body.find(b'"', start, start + 64)
        if stop > 0:
            return body[start:stop].decode(), body[-_HASH_AT:-2].decode()
    envelope = read_envelope(body)
    return envelope.timestamp, envelope.hash


def is_repeat(batch: Sequence[StoredEntry], there: Iterable[str]) -> bool:
    """Whether the ids found in the log at the batch's places are the batch's own."""
    return [stored.id for stored in batch] == list(there)


def not_found(session_id: str) -> AgentError:
    return AgentError(
        "SessionNotFound",
        f"there is no session {session_id!r} in this store; check the id and the store, or create it",
        meta={"session_id": session_id},
    )


def moved_on(session_id: str, expected: int, found: int) -> AgentError:
    if found < expected:
        why = "entries are missing: the session was deleted, or its store cut or put back; open it again"
    else:
        why = "someone else wrote to it: read the new entries and decide again"
    return AgentError(
        "SessionConcurrentWrite",
        f"session {session_id!r} ends at entry {found}, the writer expected {expected}; {why}",
        meta={"session_id": session_id, "expected_tail": expected, "found_tail": found},
    )


def fenced(lease: Lease, epoch: int) -> AgentError:
    return AgentError(
        "SessionConcurrentWrite",
        f"the lease of {lease.owner!r} on session {lease.session_id!r} (epoch {lease.epoch}) was lost: "
        f"the session is at epoch {epoch}; stop: another worker continues it",
        meta={"session_id": lease.session_id, "epoch": lease.epoch, "found_epoch": epoch, "fenced": True},
    )


def check_free(owner: str | None, seconds: float, session_id: str, lease: Lease | None) -> None:
    """Raise ``SessionBusy`` while somebody other than the holder of ``lease`` may write to the session."""
    ours = lease is not None and (lease.owner, lease.session_id) == (owner, session_id)
    if owner is not None and seconds > 0 and not ours:
        raise leased(session_id, owner, seconds)


def leased(session_id: str, owner: str, seconds: float) -> AgentError:
    return AgentError(
        "SessionBusy",
        f"session {session_id!r} is held by {owner!r} for another {seconds:.1f} s; try again later",
        meta={"session_id": session_id, "owner": owner, "retry_after": max(seconds, 0.0)},
    )


def exists_already(session_id: str) -> AgentError:
    return AgentError(
        "SessionConcurrentWrite",
        f"session {session_id!r} exists already; choose another id for the fork",
        retryable=False,
        meta={"session_id": session_id},
    )


def forks_left(session_id: str, forks: Sequence[str]) -> AgentError:
    named = ", ".join(map(repr, forks[:10])) + (f" and {len(forks) - 10} more" if len(forks) > 10 else "")
    return AgentError(
        "SessionBusy",
        f"session {session_id!r} cannot be deleted: {named} share its past; delete them first, or along with "
        'it (forks="delete")',
        retryable=False,
        meta={"session_id": session_id, "forks": list(forks[:100])},
    )


def fork_beyond(source: str, at: int, tail: int) -> AgentError:
    return AgentError(
        "InvalidEntry", f"session {source!r} cannot be forked at entry {at}: it has entries 1 to {tail}"
    )


def no_entry(session_id: str, seq: int) -> AgentError:
    return AgentError("InvalidEntry", f"session {session_id!r} has no entry {seq} to erase")


def no_blob(name: str) -> AgentError:
    return AgentError(
        "SessionReadFailed",
        f"the store holds no bytes named {name!r}; they were purged, or belong to another store",
        meta={"blob": name},
    )


# ── what every store answers for all sessions, over the few questions that each answers in its own way ──

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
        """Without what only a digest holds."""
        return (
            (self.since is None or info.updated_at >= self.since)
            and (self.until is None or info.updated_at <= self.until)
            and (self.parent is None or info.parent_session_id == self.parent)
            and (self.after is None or (info.updated_at, info.session_id) < self.after)
        )

    @property
    def about_content(self) -> bool:
        return self.status is not None or self.title is not None or bool(self.metadata)


def hides(batch: Sequence[StoredEntry]) -> bool:
    """Whether a snapshot that was made before ``batch`` holds what may not be seen any more."""
    return any(stored.kind in ("redaction", "purge") for stored in batch)


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
                entries, after = await self.load(info.session_id), 0  # what is hidden takes the whole log
            if after == 0 or any(
                isinstance(entry, RunStartedEntry) and entry.run_id == info.run_id for entry in entries
            ):
                return pending_in(info.session_id, SessionState.of(visible_entries(entries)))
            count *= 4

    async def read(self, session_id: str, *, after: int = 0, upto: int | None = None) -> list[StoredEntry]:
        raise NotImplementedError

    async def read_spans(self, session_id: str, spans: Sequence[tuple[int, int]]) -> list[StoredEntry]:
        """``read`` for several stretches, each from its first entry to its last; 0 is the end of the log."""
        return [
            stored
            for first, last in spans
            for stored in await self.read(session_id, after=first - 1, upto=last or None)
        ]

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
                # An old log: the headers before an entry give its version.
                return (await self.load(session_id))[after:]
            if len(self._current) >= KNOWN_SESSIONS:
                self._current.clear()
            self._current.add(session_id)
        return await self._decode(session_id, await self._bodies(session_id, after, None), after)

    async def _bodies(self, session_id: str, after: int, upto: int | None) -> list[bytes]:
        return [stored.body for stored in await self.read(session_id, after=after, upto=upto)]

    async def _decode(self, session_id: str, bodies: Sequence[bytes], after: int) -> list[Entry]:
        return decode_log(session_id, bodies, after=after)

    def _now(self) -> float:
        return datetime.fromisoformat(self._clock.now()).timestamp()


def digest_of(state: SessionState) -> SessionDigest:
    """What a store keeps beside the log to answer for all sessions."""
    return SessionDigest(
        status=state.status,
        run_id=state.current_run,
        pending=len(state.awaiting),
        title=state.title,
        metadata=state.metadata or None,
        about=state.about[1] or None,
    )


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
