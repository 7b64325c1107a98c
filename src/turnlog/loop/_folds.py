"""What is folded from a session beside its state: the context, and the widgets that a run has; the notes that
sessions share; and the built-in tools that reach them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from turnlog.context import (
    ContextManager,
    ContextOptions,
    PictureCache,
    ProjectionContext,
    recall_search,
    recall_text,
)
from turnlog.contract import (
    READ_ARTIFACT,
    RECALL,
    AgentError,
    Clock,
    Entry,
    FoldEntry,
    IdSource,
    JsonObject,
    Secrets,
    Store,
    Value,
    WidgetEvent,
    WidgetEventEntry,
    encode,
)
from turnlog.history import Session, Snapshot, attach_images, make_snapshot, named_blobs, visible_entries
from turnlog.observe import get_logger
from turnlog.system import SystemClock, SystemIds
from turnlog.tools import Tool, ToolContext, ToolError
from turnlog.widgets import MemoryNotebookWidget, Notebook, TodoWidget, Widget, WidgetHost, WorkspaceWidget

from ._budget import Budget

_log = get_logger("loop")
_BASE_BYTES, _BYTE_FACTOR = 14_000, 2.7
"""Memory of a session, as measured: what each takes, and bytes for each byte of its log."""
_BESIDE = 800
"""Bytes of an entry in view beside what is sent of it."""
_SHORT = 1_000
"""Entries of a session whose context is folded in one go."""


class Folds:
    """A subscriber of its session that keeps the context and the screen, so that a turn costs what is new."""

    def __init__(
        self,
        session: Session,
        context: Callable[[], ContextManager],
        widgets: Sequence[Widget[Any]] = (),
        entries: Mapping[int, Entry] | None = None,
    ) -> None:
        """``entries`` are those that the snapshot which the session relies on refers to. Raises what reading
        the snapshot raises."""
        self.session = session
        self.context = context()
        self.host = WidgetHost(widgets)
        self.pictures = PictureCache(lambda message: attach_images(session.store, message))
        self.recap_asked_at = 0
        """Tokens of the context that a recap was last asked for."""
        self._entries = entries or {}
        self._folded = False
        if session.snapshot is None:
            self._take(visible_entries(session.entries))
        else:
            self._restore(session.snapshot)
        session.subscribe(self)

    @property
    def memory(self) -> int:
        """The bytes that the session and its folds take, by an estimate."""
        held = self.session.size
        if self.session.snapshot is not None and isinstance(self.context, ProjectionContext):
            held += self.context.size + _BESIDE * len(self._entries)
        return _BASE_BYTES + int(_BYTE_FACTOR * held)

    def close(self) -> None:
        """Nothing reads them any more. The session and its subscriber refer to each other: parted, their
        memory is free at once, and not when the garbage collector next looks at old objects."""
        self.session.unsubscribe(self)

    def _take(self, entries: Sequence[Entry]) -> None:
        if entries:
            self.context.refold(entries)
            if self.host.widgets:
                self.host.refold(entries)

    async def catch_up(self) -> None:
        """Fold the context of a long session in slices, between which others have their turn."""
        slices: Callable[[], Iterator[None]] | None = getattr(self.context, "catch_up", None)
        if slices is not None and self.session.tail_seq > _SHORT:
            for _ in slices():
                await asyncio.sleep(0)

    def step(self, entry: Entry) -> None:
        self._folded = self._folded or isinstance(entry, FoldEntry)
        self.host.step(entry)
        self.context.step(entry)

    def refold(self, entries: Sequence[Entry]) -> None:
        if self.session.snapshot is not None:
            self._restore(self.session.snapshot)
            for entry in entries:
                self.step(entry)
            return
        self.context.refold(entries)
        self.host.refold(entries)

    def show(self, widgets: Sequence[Widget[Any]]) -> None:
        """Put these widgets on the screen, as the log so far makes them; the session is whole."""
        self.host = WidgetHost(widgets)
        self.host.refold(visible_entries([*self.session.entries, *self.session.staged]))

    # ── snapshots ──

    def is_due(self, least: int) -> bool:
        """Whether so many entries, or a fold, were added since the last snapshot."""
        before = self.session.snapshot.seq if self.session.snapshot is not None else 0
        added = self.session.tail_seq - before
        return (added >= least or (self._folded and added > 0)) and self.session.can_be_kept

    def take_snapshot(self) -> Snapshot | None:
        """A snapshot of all that was folded, on which the session relies from here on. None where none can be
        made: something is hidden, or a part cannot be written down."""
        key = key_of(self.context, self.host)
        if key is None or not isinstance(self.context, ProjectionContext) or not self.session.can_be_kept:
            return None
        try:
            context, widgets = self.context.snapshot(), self.host.snapshot()
            if context is None or widgets is None:
                return None
            entries = {entry.seq: entry for entry in context[1]}
            snapshot = make_snapshot(
                key, self.session.last_entry, self.session.state, sorted(entries), context[0], widgets
            )
        except Exception as error:  # of a widget; the log is there all the same
            _log.debug("%s: no snapshot: %s: %s", self.session.session_id, type(error).__name__, error)
            return None
        if snapshot is not None:
            self.session.rely_on(snapshot)
            self._entries, self._folded = entries, False
        return snapshot

    def _restore(self, snapshot: Snapshot) -> None:
        if isinstance(self.context, ProjectionContext):
            self.context.restore(snapshot.context, self._entries)
        self.host.restore(snapshot.widgets)


class MadeWith(Value, frozen=True, kw_only=True):
    """What the folds of a session are made with, apart from its entries: a snapshot is good for them."""

    context: str
    options: ContextOptions
    widgets: list[tuple[str, str, str]]


def key_of(context: ContextManager, host: WidgetHost) -> str | None:
    """``MadeWith`` as text; None where the folds cannot be kept."""
    kind = context.snapshot_kind if isinstance(context, ProjectionContext) else None
    widgets = host.snapshot_kinds
    if kind is None or widgets is None or not isinstance(context, ProjectionContext):
        return None
    return encode(MadeWith(context=kind, options=context.options, widgets=widgets)).decode()


BUILT_IN: tuple[Widget[Any], ...] = (MemoryNotebookWidget(), TodoWidget(), WorkspaceWidget())

_ASSUMED = ("notebook", "todo")
"""The widgets that a run is taken to have had when its record names none. They show nothing but their own
events, so it makes no difference when they were not there."""


def names_to_record(widgets: Sequence[Widget[Any]]) -> list[str] | None:
    """The widgets' names, or None where leaving them out means the same."""
    names = [widget.name for widget in widgets]
    assumed = [name for name in _ASSUMED if name in names]
    ours = all(type(widget).__module__.startswith("turnlog.widgets.") for widget in widgets)
    return None if names == assumed and ours else names


def find_widgets(
    names: Sequence[str] | None, more: Sequence[Widget[Any]] = (), *, all_of_them: bool = True
) -> tuple[Widget[Any], ...]:
    """The widgets of these names, from ``more`` or our own.

    Raises ``ConfigInvalid`` for one that is in neither, unless ``all_of_them`` is False.
    """
    known = {widget.name: widget for widget in (*BUILT_IN, *more)}
    wanted = _ASSUMED if names is None else names
    missing = [name for name in wanted if name not in known]
    if missing and all_of_them:
        raise AgentError(
            "ConfigInvalid",
            f"the session was recorded with the widget {', '.join(map(repr, missing))}, which is not known "
            "here; replay it from Python and pass widgets=[…]",
        )
    return tuple(known[name] for name in wanted if name in known)


# ── notes that sessions share: a small log of its own for each scope, read into sessions as entries ──

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
        """Append a change, unless the notes are so already; returns them as they are then."""
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


# ── built-in tools: those of the widgets, ``recall`` and ``read_artifact`` ──


@dataclass(frozen=True, slots=True)
class SessionShare:
    """What the built-in tools of one session work on."""

    folds: Folds
    store: Store
    notes: SharedNotes | None = None
    budget: Budget | None = None


SHARE: ContextVar[SessionShare] = ContextVar("turnlog session of a running tool")
"""Set around each call, and no attribute of ``ToolContext``: a user's tool must not reach the session."""


def widget_tools(widgets: tuple[Widget[Any], ...]) -> list[Tool]:
    """The tools of all widgets, as ordinary tools."""
    return [
        Tool.from_schema(spec.name, spec.description, spec.parameter_schema, _widget_body(widget, spec.name))
        for widget in widgets
        for spec in widget.tools
    ]


def _widget_body(widget: Widget[Any], name: str) -> Any:
    async def run(arguments: JsonObject, ctx: ToolContext) -> str:
        answer = SHARE.get().folds.host.execute(widget, name, arguments, ctx.tool_call_id)
        if answer.is_error:
            raise ToolError(answer.text)
        shared = SHARE.get().notes
        for event in answer.events:
            if shared is not None and isinstance(widget, MemoryNotebookWidget):
                event = await _in_memory(shared, event)
            ctx.emit(event.widget, event.event, event.data)
        return answer.text

    return run


async def _in_memory(notes: SharedNotes, event: WidgetEvent) -> WidgetEvent:
    try:
        return await notes.change(event)
    except AgentError as error:
        raise ToolError(error.message) from error


def memory_tools() -> list[Tool]:
    """``recall`` and ``read_artifact``: offered from the start, so that the first long result is no break.
    They wait for nothing but the store, whose own limits hold."""
    offset = {"type": "integer", "minimum": 0, "description": "Where to start, in characters."}
    query = {"type": "string", "description": "Words to search for; the best places come first."}
    return [
        Tool.from_schema(
            RECALL,
            "Bring back something that was shortened or is no longer in view: name it by its # number "
            "(entry), or search for words in it (query).",
            _schema({"entry": {"type": "string"}, "query": query, "offset": offset}, []),
            _recall,
            idempotent=True,
            concurrent=True,
            timeout=None,
        ),
        Tool.from_schema(
            READ_ARTIFACT,
            "Read on in an output that was too long to show. Name it as it was named there.",
            _schema({"artifact": {"type": "string"}, "offset": offset}, ["artifact"]),
            _read_artifact,
            idempotent=True,
            concurrent=True,
            timeout=None,
        ),
    ]


def _schema(properties: JsonObject, required: list[str]) -> JsonObject:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


async def _recall(arguments: JsonObject, ctx: ToolContext) -> str:
    folds, entry, query = SHARE.get().folds, arguments.get("entry"), arguments.get("query")
    if (entry is None) == (query is None):
        raise ToolError(
            "give either entry, the # number of what was shortened, or query, words to search for"
        )
    entries = visible_entries(await folds.session.all_entries())
    try:
        if query is not None:
            return recall_search(entries, query, size=folds.context.page_size, skip=folds.context.live_ids)
        return recall_text(
            entries, str(entry), offset=arguments.get("offset", 0), limit=folds.context.page_size
        )
    except AgentError as error:
        raise ToolError(error.message) from error


async def _read_artifact(arguments: JsonObject, ctx: ToolContext) -> str:
    share = SHARE.get()
    name = arguments["artifact"]
    # The bytes of other sessions, and those of what was redacted, are not this session's to read.
    entries = visible_entries(await share.folds.session.all_entries())
    if not any(name in named_blobs(entry) for entry in entries):
        raise ToolError(f"this session has no artifact {name!r}; name one as it was named in a result")
    try:
        data = await share.store.get_blob(name)
    except AgentError as error:
        raise ToolError(f"{error.message}; do without it, or make it again") from error
    text = data.decode("utf-8", "replace")
    start = arguments.get("offset", 0)
    page = text[start : start + share.folds.context.page_size]
    if not page:
        raise ToolError(f"the artifact has {len(text)} characters; {start} is past its end")
    left = len(text) - start - len(page)
    return f"{page}\n[{left} characters left: read on from offset {start + len(page)}]" if left else page
