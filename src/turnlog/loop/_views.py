"""What a timeline shows of a log, in a browser or a terminal: its steps, glances for lists, what the model
saw. Logs that were read are kept for the next question."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from turnlog.context import ContextView, diff_contexts
from turnlog.contract import (
    AgentError,
    ApprovalDecidedEntry,
    CompactionSummaryEntry,
    Entry,
    ModelCallFailedEntry,
    ModelCallStartedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    PurgeEntry,
    RedactionEntry,
    RunEndedEntry,
    SessionInfo,
    Store,
    SystemPromptEntry,
    ToolResultsEntry,
    Value,
    encode,
)
from turnlog.history import SessionState, Step, Timeline, TimelineReader, screens_in, visible_entries

from ._stored import explain

_KEPT_LOGS = 12
_KEPT_ENTRIES = 60_000
_KEPT_GLANCES = 2_000
_BUCKETS = 26


class Log:
    """One session's log in memory, in step with the store when it was asked for."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.entries: list[Entry] = []
        self.visible: list[Entry] = []
        self.state = SessionState()
        self._reader = TimelineReader()
        self.contexts: OrderedDict[int, ContextView] = OrderedDict()

    @property
    def tail(self) -> int:
        return self.entries[-1].seq if self.entries else 0

    def add(self, fresh: Sequence[Entry]) -> None:
        if self.entries:
            for entry in fresh:
                self.state.step(entry)
        else:
            self.state.take(fresh)
        self.entries += fresh
        if any(isinstance(entry, RedactionEntry | PurgeEntry) for entry in fresh):
            self.contexts.clear()
            self.visible = visible_entries(self.entries)
            self._reader = TimelineReader()
            fresh = self.visible
        else:
            self.visible += fresh
        for entry in fresh:
            self._reader.step(entry)

    @property
    def timeline(self) -> Timeline:
        return self._reader.timeline()

    def context(self, call: int) -> ContextView:
        if call not in self.contexts:
            self.contexts[call] = explain(self.entries, call)
            if len(self.contexts) > 16:
                self.contexts.popitem(last=False)
        return self.contexts[call]


class Logs:
    """The logs that were looked at last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[str, Log] = OrderedDict()
        self._glances: OrderedDict[str, tuple[str, Glance]] = OrderedDict()

    async def get(self, session_id: str) -> Log:
        """Raises ``SessionNotFound``."""
        log = self._kept.pop(session_id, None)
        if log is not None:
            tail = await self._store.tail(session_id)
            last = log.entries[-1] if log.entries else None
            if tail is None or last is None or tail.seq < last.seq:
                log = None  # it was deleted, and perhaps made again
            elif tail.seq > last.seq:
                fresh = await self._store.load(session_id, after=last.seq)
                if any(isinstance(entry, PurgeEntry) for entry in fresh):
                    log = None  # what was erased from the store is not kept here either
                else:
                    log.add(fresh)
        if log is None:
            log = Log(session_id)
            log.add(await self._store.load(session_id))
        self._kept[session_id] = log
        while len(self._kept) > 1 and (
            len(self._kept) > _KEPT_LOGS or sum(each.tail for each in self._kept.values()) > _KEPT_ENTRIES
        ):
            self._kept.popitem(last=False)
        return log

    def forget(self, session_id: str) -> None:
        self._kept.pop(session_id, None)
        self._glances.pop(session_id, None)

    async def glance(self, session_id: str) -> Glance:
        """What a row of a list shows; kept until the log grows."""
        tail = await self._store.tail(session_id)
        if tail is None:
            raise AgentError("SessionNotFound", f"there is no session {session_id}")
        kept = self._glances.get(session_id)
        if kept is not None and kept[0] == tail.hash:
            return kept[1]
        glance = glance_of((await self.get(session_id)).timeline)
        self._glances[session_id] = (tail.hash, glance)
        if len(self._glances) > _KEPT_GLANCES:
            self._glances.popitem(last=False)
        return glance

    async def search(self, infos: Sequence[SessionInfo], words: str) -> list[Hit]:
        """The sessions that hold ``words``, in any case, with the place where they stand first."""
        wanted = encode(words.lower())[1:-1]
        hits: list[Hit] = []
        for info in infos:
            named = f"{info.session_id}\n{info.title or ''}\n{info.about or ''}".lower()
            if words.lower() in named:
                hits.append(Hit(session_id=info.session_id))
                continue
            stored = await self._store.read(info.session_id)
            if not any(wanted in each.body.lower() for each in stored):
                continue
            for entry in (await self.get(info.session_id)).visible:
                text = words_of(entry)
                at = text.lower().find(words.lower())
                if at >= 0:
                    hits.append(
                        Hit(session_id=info.session_id, seq=entry.seq, text=text[max(0, at - 60) : at + 100])
                    )
                    break
        return hits


class Hit(Value, frozen=True, kw_only=True):
    """A session that a search found: in its name, or in the entry ``seq``."""

    session_id: str
    seq: int | None = None
    text: str | None = None


class Glance(Value, frozen=True, kw_only=True):
    """A session in one row: what happened last, what it cost, and its steps in a few buckets, each with the
    time it took and what was worst in it."""

    last: str = ""
    model: str | None = None
    cost: float | None = None
    calls: int = 0
    buckets: list[tuple[int, str]] = []


def glance_of(timeline: Timeline) -> Glance:
    steps = [step for step in timeline.steps if step.kind in ("model", "tool", "input", "fold", "run_ended")]
    told = [step for step in steps if step.error or (step.title and step.kind != "run_ended")]
    last = told[-1] if told else None
    size = max(1, -(-len(steps) // _BUCKETS))
    groups = [steps[at : at + size] for at in range(0, len(steps), size)]
    return Glance(
        last=_happening(last) if last is not None else "",
        model=next((run.model for run in reversed(timeline.runs) if run.model), None),
        cost=timeline.usage.cost if timeline.usage is not None else None,
        calls=sum(run.calls for run in timeline.runs),
        buckets=[(sum(step.ms or 0 for step in group), _worst(group)) for group in groups],
    )


def _happening(step: Step) -> str:
    if step.error:
        return step.error
    name = f"{step.tool} " if step.tool else ""
    return f"{name}{step.title}" + (" waits for you" if step.status == "waiting" else "")


def _worst(group: Sequence[Step]) -> str:
    statuses = {step.status for step in group}
    for status in ("failed", "waiting", "running"):
        if status in statuses:
            return status
    return "model" if any(step.kind == "model" for step in group) else "tool"


def words_of(entry: Entry) -> str:
    """What a reader of the timeline reads in an entry."""
    match entry:
        case ModelInputEntry() | ModelOutputEntry() | ToolResultsEntry():
            message = entry.payload.message
            texts = [message.text]
            for part in message.tool_calls:
                texts.append(f"{part.payload.tool_name} {encode(part.payload.arguments or {}).decode()}")
            texts += [part.payload.text for part in message.tool_results]
            return "\n".join(filter(None, texts))
        case ModelCallFailedEntry():
            return f"{entry.payload.error.code}: {entry.payload.error.message}\n{entry.payload.partial or ''}"
        case RunEndedEntry():
            error = entry.payload.error
            return f"{error.code}: {error.message}" if error is not None else ""
        case CompactionSummaryEntry():
            return entry.payload.summary
        case SystemPromptEntry():
            return entry.payload.text
        case ApprovalDecidedEntry():
            return f"{entry.payload.decided_by} {entry.payload.note or ''}"
        case _:
            return ""


class Saw(Value, frozen=True, kw_only=True):
    """What the model saw at a call. The first ``known`` messages were in the call before too, unchanged."""

    view: ContextView
    known: int
    previous: int | None = None
    head_changed: bool = False


def saw(log: Log, call: int) -> Saw:
    view = log.context(call)
    if view.call == 1:
        return Saw(view=view, known=0)
    diff = diff_contexts(log.context(view.call - 1).context(), view.context())
    return Saw(
        view=view,
        known=diff.common_messages,
        previous=view.call - 1,
        head_changed=diff.head_changed,
    )


def call_at(log: Log, seq: int) -> int:
    """The number of the model call that entry ``seq`` belongs to, or of the last one before it; 0: none."""
    return sum(isinstance(entry, ModelCallStartedEntry) and entry.seq <= seq for entry in log.entries)


def screen_at(log: Log, seq: int) -> str | None:
    """The widgets' screen as it stood after entry ``seq``."""
    shown = [screen for _, screen in screens_in(log.visible[:seq])]
    return shown[-1] if shown else None
