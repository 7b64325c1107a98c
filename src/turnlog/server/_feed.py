"""Live events for any number of followers of one session: read once, encoded once, sent to each.

Behind the frames that are kept is the log: a follower who comes late, or reads too slowly, gets the entries
from there and loses deltas alone.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

from turnlog.contract import AgentError, Entry, PurgeEntry, RedactionEntry, RunEvent, Store, encode
from turnlog.history import Announcing, visible_entries
from turnlog.loop import STRIDE, AgentLoop, EventReader, OpenRun

View: TypeAlias = Literal["events", "entries"]
"""What is sent: the events of runs as ``run.events()`` gives them, or the entries of the log with what
happens between them (deltas, progress, status)."""

Frame: TypeAlias = tuple[int, bytes]

_BETWEEN = ("model_delta", "tool_progress", "status")
"""Kinds of events that no entry tells of."""
_KEPT = 4_000
_LOOK, _QUIET = 0.25, 2.0
"""Seconds between two looks at a log that another process may write: after news, and when there was none for
long. A look takes a fifth longer to come than the one before it."""
_HINTED = 2.0
BEAT = 15.0
"""Seconds without news after which a follower gets a comment, so that a dead connection is noticed."""
_BEAT = b": still here\n\n"
_GAP, _GAP_EACH = 0.06, 0.0005
"""Seconds between two times that followers are woken: so many at most, and so many for each of them. A write
costs much the same whatever its length, so many followers get what came meanwhile in one."""
_AT_ONCE = 256_000
"""Bytes of one write to a follower, about; what a slow one has not taken yet is kept once for all."""
_SHARED = 8
_PAST_KEPT = 3.0
"""Seconds that what was read of the past for one follower is kept for the next."""


class _Past(NamedTuple):
    """What the log has above ``after``; ``key`` is how far it was, and whether a process drove its run."""

    key: tuple[int, bool]
    after: int
    frames: list[Frame]


class Feed:
    """One session as its followers see it. It reads the log for as long as somebody follows."""

    def __init__(self, store: Store, loop: AgentLoop | None, session_id: str, view: View) -> None:
        self._store = store
        self._loop = loop
        self._session_id = session_id
        self._view: View = view
        self._frames: list[Frame] = []
        self._reader = EventReader()
        self._seq = 0
        self._number = 0
        self._floor = 0
        """Frames with numbers above this are all kept."""
        self._shared: dict[int, tuple[int, bytes]] = {}
        """By the place where followers stand: what comes next for them."""
        self._past: _Past | None = None
        """What was read from the log for those who come late."""
        self._reading = asyncio.Lock()
        self._beats = 0
        self._beat: asyncio.TimerHandle | None = None
        self._woken = 0.0
        self._waking: asyncio.TimerHandle | None = None
        self._pause = _LOOK
        self._news = asyncio.Event()
        self._poke = asyncio.Event()
        self._home: asyncio.AbstractEventLoop | None = None
        self._begun: deque[OpenRun] = deque()
        """Runs of this process that are not shown yet, the oldest first."""
        if loop is not None and (run := loop.sessions.runs.get(session_id)) is not None:
            self._begun.append(run)
        self._opening = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.idle = False
        self.ended = False
        self.gone: AgentError | None = None
        self.followers = 0

    def attach(self, run: OpenRun) -> None:
        """A run begins here: show it from its first delta on. Called in any thread."""
        self._begun.append(run)
        if self._home is not None and not self._home.is_closed():
            self._home.call_soon_threadsafe(self._poke.set)

    async def follow(self, after: int, *, until_idle: bool = False) -> AsyncIterator[bytes]:
        """Frames with numbers above ``after`` as bytes, several at once where several wait."""
        self.followers += 1
        beats = self._beats
        try:
            await self._open()
            yield b": turnlog\nretry: 1000\n\n"
            while True:
                place = after
                if after < self._floor:
                    after, data = await self._read_past(after)
                else:
                    after, data = self._since(after)
                if data:
                    beats = self._beats
                    yield data
                if after != place:
                    continue
                if self.ended:
                    return
                if self.gone is not None:
                    yield _frame("gone", None, encode(self.gone.to_info()))
                    return
                if until_idle and self.idle:
                    return
                if beats != self._beats:
                    beats = self._beats
                    yield _BEAT
                    continue
                await self._news.wait()
        finally:
            self.followers -= 1
            if self.followers == 0:
                self.close()

    def _since(self, after: int) -> tuple[int, bytes]:
        """What is kept above ``after``, as much as one write takes, and the number of the last of it. Most
        followers stand at the same place, and share the bytes."""
        found = self._shared.get(after)
        if found is None:
            found = _joined(self._frames, bisect_right(self._frames, after, key=_number_of), after)
            if found[0] == self._number and len(self._shared) < _SHARED:
                self._shared[after] = found
        return found

    async def _read_past(self, after: int) -> tuple[int, bytes]:
        """The same from the log, for what is not kept any more: it has the entries, and what came between
        them is over. It is read once for all who ask within seconds."""
        async with self._reading:
            key = self._seq, bool(self._begun or await self._is_driven())
            if self._past is None or self._past.key != key or self._past.after > after:
                frames = self._frames_of(await self._load(), after, driven=key[1])
                frames = [frame for frame in frames if frame[0] <= (key[0] + 1) * STRIDE]
                self._past = _Past(key, after, frames)
                asyncio.get_running_loop().call_later(_PAST_KEPT, self._forget, self._past)
            frames = self._past.frames
        number, data = _joined(frames, bisect_right(frames, after, key=_number_of), after)
        if not data or number == frames[-1][0]:
            number = max(number, self._floor)
        return number, data

    def _forget(self, past: _Past) -> None:
        if self._past is past:
            self._past = None

    async def _open(self) -> None:
        async with self._opening:
            if self._task is not None:
                return
            self._home = asyncio.get_running_loop()
            if self._seq == 0:
                # What is past is read from the log by those who ask for it; here begins what is new.
                told: list[RunEvent] = []
                for entry in await self._store.load(self._session_id):
                    self._seq = entry.seq
                    told = self._reader.step(entry)
                # The deltas since the last entry are new to every follower.
                self._floor = self._number = told[-1].seq if told else self._seq * STRIDE
            self._task = asyncio.create_task(self._watch(), name=f"turnlog feed {self._session_id}")
            self._beat = self._home.call_later(BEAT, self._tick)

    def _tick(self) -> None:
        """One clock for all followers; those who got something since the last tick need no comment."""
        self._beats += 1
        self._wake()
        if self._home is not None:
            self._beat = self._home.call_later(BEAT, self._tick)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for timer in (self._beat, self._waking):
            if timer is not None:
                timer.cancel()
        self._beat = self._waking = None

    def end(self) -> None:
        """The server stops: the followers leave."""
        self.close()
        self.ended = True
        self._wake()

    async def _load(self) -> list[Entry]:
        return visible_entries(await self._store.load(self._session_id))

    # ── what is new ──

    async def _watch(self) -> None:
        try:
            while True:
                self._poke.clear()
                if self._begun:
                    await self._show(self._begun.popleft())
                    continue
                await self._catch_up()
                driven = await self._is_driven()
                if not driven and not self._begun and (rest := self._reader.rest()) is not None:
                    self._add_event(rest)  # once: it has the number that its own process gave it
                    self._wake_soon()
                self._set_idle(not self._begun and not driven)
                if not self._begun:
                    await self._wait()
        except AgentError as error:
            self.gone = error
            self._wake()

    async def _is_driven(self) -> bool:
        """Whether another process drives a run of this session."""
        state = self._reader.state
        return state.is_open and await self._store.holder(self._session_id) is not None

    async def _wait(self) -> None:
        if isinstance(self._store, Announcing) and self._loop is None:
            await self._store.wait_for_change(self._session_id, self._seq, _HINTED)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._poke.wait(), self._pause)
        self._pause = min(_QUIET, self._pause * 1.2)

    async def _show(self, run: OpenRun) -> None:
        """What a run of this process does, as it happens, with the entries in their places."""
        self._set_idle(False)
        async for event in run.hub.events(self._number):
            if event.seq // STRIDE > self._seq:
                await self._catch_up(event.seq // STRIDE)
            self._add_event(event)
            self._wake_soon()

    async def _catch_up(self, upto: int | None = None) -> None:
        """Take in the new entries of the log, those past ``upto`` later."""
        tail = await self._store.tail(self._session_id)
        if tail is None:
            raise AgentError("SessionNotFound", f"session {self._session_id} was deleted")
        if tail.seq <= self._seq:
            return
        fresh = await self._store.load(self._session_id, after=self._seq)
        if upto is None and self._begun:
            return  # a run began meanwhile: its entries come with its deltas
        for entry in fresh:
            if upto is None or entry.seq <= upto:
                self._take(entry)
        self._wake_soon()

    def _take(self, entry: Entry) -> None:
        self._seq = entry.seq
        if isinstance(entry, RedactionEntry | PurgeEntry):
            # What is kept may hold what is hidden now; the log shows the rest to those who come later.
            self._frames.clear()
            self._shared.clear()
            self._past = None
            self._floor = entry.seq * STRIDE - 1
        events = self._reader.step(entry)
        if self._view == "events":
            for event in events:
                self._add_event(event)
        else:
            self._add(entry.seq * STRIDE, _frame("entry", entry.seq * STRIDE, encode(entry)))

    def _add_event(self, event: RunEvent) -> None:
        if event.seq <= self._number:
            return
        if self._view == "entries" and event.kind not in _BETWEEN:
            return
        self._add(event.seq, _event_frame(event))

    def _add(self, number: int, data: bytes) -> None:
        self._number = number
        self._pause = _LOOK
        self._shared.clear()
        self._frames.append((number, data))
        if len(self._frames) > 2 * _KEPT:
            self._floor = self._frames[-_KEPT - 1][0]
            del self._frames[:-_KEPT]

    def _set_idle(self, idle: bool) -> None:
        if idle != self.idle:
            self.idle = idle
            self._wake()

    def _wake_soon(self) -> None:
        """At once when the last time is long ago, else with what comes until the gap has passed."""
        if self._waking is not None or self._home is None:
            return
        due = self._woken + min(_GAP, _GAP_EACH * self.followers)
        if due <= self._home.time():
            self._wake()
        else:
            self._waking = self._home.call_at(due, self._wake)

    def _wake(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        news, self._news = self._news, asyncio.Event()
        news.set()
        if self._home is not None:  # after the followers' turns, however long those take on a busy machine
            self._home.call_soon(self._mark)

    def _mark(self) -> None:
        if self._home is not None:
            self._woken = self._home.time()

    def _frames_of(self, entries: Iterable[Entry], after: int, *, driven: bool) -> list[Frame]:
        reader = EventReader()
        frames: list[Frame] = []
        for entry in entries:
            number = entry.seq * STRIDE
            if self._view == "entries":
                frames += [(number, _frame("entry", number, encode(entry)))] if number > after else []
            else:
                told = [event for event in reader.step(entry) if event.seq > after]
                frames += [(event.seq, _event_frame(event)) for event in told]
        rest = reader.rest() if not driven else None
        if rest is not None and rest.seq > after:
            insort(frames, (rest.seq, _event_frame(rest)), key=_number_of)
        return frames


class Feeds:
    """The feeds of a server. One that nobody follows is closed after a while."""

    def __init__(self, store: Store, loop: AgentLoop | None, limit: int) -> None:
        self._store = store
        self._loop = loop
        self._limit = limit
        self._feeds: dict[tuple[str, View], Feed] = {}
        if loop is not None:
            loop.sessions.listeners.append(self._tell)

    @property
    def followers(self) -> int:
        return sum(feed.followers for feed in self._feeds.values())

    @property
    def is_full(self) -> bool:
        return self.followers >= self._limit

    def _tell(self, run: OpenRun) -> None:
        for (name, _), feed in list(self._feeds.items()):
            if name == run.session_id:
                feed.attach(run)

    def get(self, session_id: str, view: View) -> Feed:
        for key, feed in list(self._feeds.items()):
            if feed.followers == 0 or feed.gone is not None:
                feed.close()
                del self._feeds[key]
        feed = self._feeds.get((session_id, view))
        if feed is None:
            feed = self._feeds[session_id, view] = Feed(self._store, self._loop, session_id, view)
        return feed

    def close(self) -> None:
        if self._loop is not None and self._tell in self._loop.sessions.listeners:
            self._loop.sessions.listeners.remove(self._tell)
        for feed in self._feeds.values():
            feed.end()
        self._feeds.clear()


def _joined(frames: Sequence[Frame], start: int, after: int) -> tuple[int, bytes]:
    """The frames from ``start`` on, as many as one write takes, and the number of the last of them."""
    taken: list[bytes] = []
    size = 0
    for number, data in islice(frames, start, None):
        if taken and size + len(data) > _AT_ONCE:
            break
        taken.append(data)
        size += len(data)
        after = number
    return after, b"".join(taken)


def _number_of(frame: Frame) -> int:
    return frame[0]


def _event_frame(event: RunEvent) -> bytes:
    return _frame(event.kind, event.seq, encode(event))


def _frame(kind: str, number: int | None, data: bytes) -> bytes:
    name = b"" if number is None else b"id: %d\n" % number
    return b"%sevent: %s\ndata: %s\n\n" % (name, kind.encode(), data)
