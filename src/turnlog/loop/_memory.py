"""Notes that sessions share: a small log of its own for each scope, read into sessions as entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnlog.contract import (
    AgentError,
    Clock,
    IdSource,
    Secrets,
    Store,
    WidgetEvent,
    WidgetEventEntry,
)
from turnlog.history import Session, visible_entries
from turnlog.system import SystemClock, SystemIds
from turnlog.widgets import MemoryNotebookWidget, Notebook

from ._folds import Folds

_TRIES = 20


class Memory:
    """The notes of one scope, for the host and the command; an agent reads and writes them through
    ``MemoryNotebookWidget(scope=…)``.

    Every change is an entry of the log ``memory:SCOPE``, and ``version`` counts them. A change that was made
    on an older version is refused as ``SessionConcurrentWrite`` where it would undo another's.
    """

    PREFIX = "memory:"
    """How the names of these logs begin."""

    def __init__(
        self,
        store: Store,
        scope: str,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        self.widget = MemoryNotebookWidget(scope=scope)
        self._store = store
        self._clock, self._ids = clock or SystemClock(), ids or SystemIds()
        self._secrets = secrets
        self.scope = scope
        self.session_id = self.PREFIX + scope

    async def version(self) -> int:
        """Changes whenever a note does."""
        tail = await self._store.tail(self.session_id)
        return tail.seq if tail is not None else 0

    async def read(self) -> Notebook:
        """The notes as they are now, with their version."""
        return self._notebook(await self._open())[0]

    async def write(self, name: str, text: str, *, seen: int | None = None) -> Notebook:
        """Keep a note. With ``seen``, the version that the caller has read, it is refused when the note was
        changed by others since."""
        return await self.apply(self.widget.write(name, text), seen=seen)

    async def erase(self, name: str, *, seen: int | None = None) -> Notebook:
        return await self.apply(self.widget.erase(name), seen=seen)

    async def replace_all(self, notes: Mapping[str, str], *, seen: int | None = None) -> Notebook:
        """Put these notes in the place of all others."""
        return await self.apply(self.widget.replace_all(notes), seen=seen)

    async def undo(self, *, seen: int | None = None) -> Notebook:
        """Undo the last change, by the model or a human."""
        return await self.apply(self.widget.undo(), seen=seen)

    async def apply(self, event: WidgetEvent, *, seen: int | None = None) -> Notebook:
        """Append a change, unless the notes say so already; returns them as they are then."""
        for _ in range(_TRIES):
            session = await self._open()
            before, changed_at = self._notebook(session)
            session.append_widget_event(event)
            after = self._notebook(session)[0]
            if after.notes == before.notes:
                session.discard()
                return before
            if seen is not None:
                _check_seen(event, before, changed_at, seen)
            try:
                await session.commit()
            except AgentError as error:
                if error.code != "SessionConcurrentWrite":
                    raise
                continue  # another writer was faster: look again at what it wrote
            return after
        raise AgentError(
            "SessionConcurrentWrite", f"the notes of {self.scope!r} are changed all the time; try again later"
        )

    async def _open(self) -> Session:
        session = await Session.open(
            self._store,
            self.session_id,
            clock=self._clock,
            ids=self._ids,
            title=f"notes of {self.scope}",
            metadata={"memory": self.scope},
        )
        session.secrets = self._secrets or session.secrets
        return session

    def _notebook(self, session: Session) -> tuple[Notebook, dict[str, int]]:
        """The notes, and the version in which each was last changed."""
        state, changed_at = self.widget.initial(), dict[str, int]()
        for entry in visible_entries([*session.entries, *session.staged]):
            before = dict(state.notes)
            if isinstance(entry, WidgetEventEntry) and entry.purged_digest is None:
                state = self.widget.reduce(state, entry)
            after = dict(state.notes)
            for name in {**before, **after}:
                if before.get(name) != after.get(name):
                    changed_at[name] = entry.seq
        return state.seen(self.scope, session.next_seq - 1), changed_at


def _check_seen(event: WidgetEvent, now: Notebook, changed_at: dict[str, int], seen: int) -> None:
    name = event.data.get("name")
    newest = max(changed_at.values(), default=0) if name is None else changed_at.get(name, 0)
    if newest <= seen:
        return
    text = now.get(str(name)) if name is not None else None
    what = "the notes were" if name is None else f"the note {name!r} was"
    now_is = f"; it now says: {text}" if text is not None else "; it is gone" if name is not None else ""
    raise AgentError(
        "SessionConcurrentWrite",
        f"{what} changed by another since version {seen}{now_is}. Read it again, and change it if that still "
        "fits",
    )


class SharedNotes:
    """The shared notebook of one session's agent, where it has one."""

    def __init__(self, folds: Folds, memory: Memory) -> None:
        self._folds = folds
        self.memory = memory

    @property
    def _seen(self) -> Notebook:
        return self._folds.host.state(MemoryNotebookWidget.name)

    async def refresh(self) -> None:
        """Stage an entry with the notes, where they are not what this session last read."""
        version, seen = await self.memory.version(), self._seen
        if (seen.scope or self.memory.scope, seen.version) == (self.memory.scope, version):
            return
        self._folds.session.append_widget_event(_read_event(await self.memory.read()))

    async def change(self, event: WidgetEvent) -> WidgetEvent:
        """Make a change of this session in the shared log. Returns the event for the session's own: the
        change itself, or all notes where others had changed some too. Raises ``SessionConcurrentWrite``."""
        seen = self._seen
        after = await self.memory.apply(event, seen=seen.version)
        if self.memory.widget.after(seen, event).notes != after.notes:
            return _read_event(after, event.tool_call_id)
        return _with_version(event, after)


def _read_event(notes: Notebook, tool_call_id: str | None = None) -> WidgetEvent:
    data: dict[str, Any] = {
        "scope": notes.scope,
        "version": notes.version,
        "notes": [{"name": name, "text": text} for name, text in notes.notes],
    }
    return WidgetEvent(widget=MemoryNotebookWidget.name, event="read", data=data, tool_call_id=tool_call_id)


def _with_version(event: WidgetEvent, after: Notebook) -> WidgetEvent:
    data = {**event.data, "scope": after.scope, "version": after.version}
    return WidgetEvent(widget=event.widget, event=event.event, data=data, tool_call_id=event.tool_call_id)


def shared_notes(
    folds: Folds, store: Store, clock: Clock, ids: IdSource, secrets: Secrets
) -> SharedNotes | None:
    """The shared notebook among the widgets of a session, if there is one."""
    for widget in folds.host.widgets:
        if isinstance(widget, MemoryNotebookWidget) and widget.scope is not None:
            return SharedNotes(folds, Memory(store, widget.scope, clock=clock, ids=ids, secrets=secrets))
    return None
