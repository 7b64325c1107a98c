"""Events, which the watchers of a run see: made from entries and numbered by the session.

The event of entry n has the number ``n * STRIDE``; what happens between two entries (deltas, progress,
changes of status) counts up from there. So a number belongs to the session and is never given twice,
whichever process drives the run, and the events of entries can be made again from the log.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from turnlog import events
from turnlog.contract import (
    DELTA_EVENTS,
    ApprovalDecidedEntry,
    ApprovalRequestedEntry,
    Clock,
    Entry,
    FoldEntry,
    MessageDelta,
    ModelCallFailedEntry,
    ModelCallStartedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    RunEndedEntry,
    RunEvent,
    RunResult,
    RunStatus,
    ToolDeferredEntry,
    ToolResultsEntry,
    ToolStartedEntry,
    check_transition,
)
from turnlog.history import Session, SessionState
from turnlog.observe import get_logger

from ._output import output_in

STRIDE = 1_000_000
_LATER = 500_000
"""Where a driver that takes over an open run begins to count between two entries: above what the one before
it can have shown. The number before it is that of the last event of a run which was let go there."""
_WAITING = ("awaiting_human", "paused")

_loop = get_logger("loop")


Place: TypeAlias = "dict[str, Any]"
"""The fields that every event has: where it belongs."""


def _of_call(entry: ModelCallStartedEntry, state: SessionState, at: Place) -> list[RunEvent]:
    call = entry.payload
    return [
        events.ModelCalled(
            **at,
            entry_id=entry.id,
            model_call_index=call.model_call_index,
            attempt=call.attempt,
            target=call.target,
            context_hash=call.context_hash,
            reason=call.reason,
        )
    ]


def _of_failure(entry: ModelCallFailedEntry, state: SessionState, at: Place) -> list[RunEvent]:
    failed, told = entry.payload, list[RunEvent]()
    if not failed.error.code.startswith("Model"):
        return told  # it was stopped from outside: the end of the run tells why
    if failed.shown:
        index, attempt = failed.model_call_index, failed.attempt
        told.append(
            events.Retracted(**at, model_call_index=index, attempt=attempt, reason=failed.error.message)
        )
    if failed.retry_in_ms is not None or failed.error.code == "ModelContextOverflow":
        at = {**at, "seq": at["seq"] + len(told)}
        told.append(
            events.ErrorShown(**at, error=failed.error, retry_in_ms=failed.retry_in_ms, will_retry=True)
        )
    return told


def _of_answer(entry: ModelOutputEntry, state: SessionState, at: Place) -> list[RunEvent]:
    answer = entry.payload
    return [
        events.AnswerAdded(
            **at,
            entry_id=entry.id,
            message=answer.message,
            finish_reason=answer.finish_reason,
            note=(entry.meta or {}).get("route"),
        )
    ]


def _of_input(entry: ModelInputEntry, state: SessionState, at: Place) -> list[RunEvent]:
    return [events.InputAdded(**at, entry_id=entry.id, message=entry.payload.message)]


def _of_start(entry: ToolStartedEntry, state: SessionState, at: Place) -> list[RunEvent]:
    started = entry.payload
    arguments, call = started.arguments, state.calls.get(started.tool_call_id)
    if arguments is None and call is not None:
        arguments = call.arguments
    return [
        events.ToolStarted(
            **at,
            entry_id=entry.id,
            tool_call_id=started.tool_call_id,
            tool_name=started.tool_name,
            arguments=arguments,
            child_session_id=started.child_session_id,
        )
    ]


def _of_deferral(entry: ToolDeferredEntry, state: SessionState, at: Place) -> list[RunEvent]:
    waits = entry.payload
    return [
        events.ToolDeferred(
            **at,
            entry_id=entry.id,
            tool_call_id=waits.tool_call_id,
            tool_name=waits.tool_name,
            reason=waits.reason,
            question=waits.question,
            answer_schema=waits.answer_schema,
            by=waits.by,
        )
    ]


def _of_results(entry: ToolResultsEntry, state: SessionState, at: Place) -> list[RunEvent]:
    """One event for each result: its message holds that result alone."""
    message, outcomes = entry.payload.message, entry.payload.outcomes
    alone, told, seq = message, list[RunEvent](), at["seq"]
    for place, outcome in enumerate(outcomes):
        if len(message.parts) > 1:
            alone = msgspec.structs.replace(message, parts=message.parts[place : place + 1])
        at["seq"] = seq + place
        told.append(
            events.ToolFinished(
                **at,
                entry_id=entry.id,
                tool_call_id=outcome.tool_call_id,
                tool_name=outcome.tool_name,
                status=outcome.status,
                elapsed_ms=outcome.elapsed_ms,
                message=alone,
                handed_to=outcome.handed_to,
            )
        )
    return told


def _of_request(entry: ApprovalRequestedEntry, state: SessionState, at: Place) -> list[RunEvent]:
    asked = entry.payload
    return [
        events.ApprovalRequested(
            **at,
            entry_id=entry.id,
            tool_call_id=asked.tool_call_id,
            tool_name=asked.tool_name,
            arguments=asked.arguments,
            digest=asked.digest,
            reason=asked.reason,
        )
    ]


def _of_decision(entry: ApprovalDecidedEntry, state: SessionState, at: Place) -> list[RunEvent]:
    call_id, action, by = entry.payload.tool_call_id, entry.payload.action, entry.payload.decided_by
    return [
        events.ApprovalDecided(**at, entry_id=entry.id, tool_call_id=call_id, action=action, decided_by=by)
    ]


def _of_fold(entry: FoldEntry, state: SessionState, at: Place) -> list[RunEvent]:
    fold = entry.payload
    before, after = fold.tokens_before, fold.tokens_after
    return [
        events.ContextFolded(
            **at, entry_id=entry.id, reason=fold.reason, tokens_before=before, tokens_after=after
        )
    ]


def _of_end(entry: RunEndedEntry, state: SessionState, at: Place) -> list[RunEvent]:
    error = entry.payload.error
    return [events.ErrorShown(**at, error=error)] if error is not None else []


TELLING: dict[str, Callable[[Any, SessionState, Place], list[RunEvent]]] = {
    "model_input": _of_input,
    "model_call_started": _of_call,
    "model_call_failed": _of_failure,
    "model_output": _of_answer,
    "tool_started": _of_start,
    "tool_deferred": _of_deferral,
    "tool_results": _of_results,
    "approval_requested": _of_request,
    "approval_decided": _of_decision,
    "fold": _of_fold,
    "run_ended": _of_end,
}
"""The events of each kind of entry. The other kinds have none."""


def events_of(entry: Entry, state: SessionState) -> list[RunEvent]:
    """What a watcher sees of ``entry``; ``state`` is that of the log up to it."""
    tell = TELLING.get(entry.kind)
    if tell is None:
        return []
    at: Place = {
        "seq": entry.seq * STRIDE,
        "session_id": entry.session_id,
        "run_id": entry.run_id or "",
        "timestamp": entry.timestamp,
    }
    return tell(entry, state, at)


def result_of(session_id: str, state: SessionState, output: Any = UNSET) -> RunResult[Any]:
    """What came of the newest run, as its log has it; without ``output`` that is plain JSON."""
    status = state.status
    answer = state.output.payload if state.output is not None else None
    return RunResult(
        session_id=session_id,
        run_id=state.run_id or "",
        status=status if status in _RESULTS else "failed",  # pyright: ignore[reportArgumentType]
        final_assistant_message=answer.message if answer is not None and status == "completed" else None,
        finish_reason=answer.finish_reason if answer is not None else None,
        last_error=state.ended.error if state.ended is not None else None,
        usage=state.usage,
        agent_name=state.agent,
        output_value=output_in(state) if output is UNSET else output,
    )


_RESULTS = ("completed", "failed", "aborted", "awaiting_human", "paused")


def ended_event(entry: RunEndedEntry, state: SessionState) -> RunEvent:
    """The last event of a run: its result."""
    return events.RunEnded(
        seq=entry.seq * STRIDE + 2,  # behind the error, and the status that a watcher of the run saw
        session_id=entry.session_id,
        run_id=entry.run_id or "",
        timestamp=entry.timestamp,
        result=result_of(entry.session_id, state),
    )


class EventReader:
    """Makes the events of a log again, entry by entry: all but what happened between two entries."""

    def __init__(self) -> None:
        self.state = SessionState()
        self._rested: Entry | None = None
        """The entry since which the run waits."""

    def skip(self, entry: Entry) -> None:
        """Take ``entry`` in; nobody asks for its events."""
        self.state.step(entry)
        if self.state.status not in _WAITING:
            self._rested = None
        elif self._rested is None:
            self._rested = entry

    def step(self, entry: Entry) -> list[RunEvent]:
        self.skip(entry)
        told = events_of(entry, self.state)
        return [*told, ended_event(entry, self.state)] if isinstance(entry, RunEndedEntry) else told

    def rest(self) -> RunEvent | None:
        """The last event of a run that was let go and waits: no entry stands for it, so it is made from where
        the log ends. None while the run does not wait."""
        if self._rested is None:
            return None
        return events.RunEnded(
            seq=self._rested.seq * STRIDE + _LATER - 1,
            session_id=self._rested.session_id,
            run_id=self.state.run_id or "",
            timestamp=self._rested.timestamp,
            result=result_of(self._rested.session_id, self.state),
        )


def replay_events(entries: Iterable[Entry], after: int = 0, *, driven: bool = False) -> Iterator[RunEvent]:
    """The events of a log with numbers above ``after``: what a watcher missed, without the deltas. Where the
    run waits and is not ``driven``, the last one is that of letting it go."""
    reader = EventReader()
    for entry in entries:
        if (entry.seq + 1) * STRIDE <= after:
            reader.skip(entry)
        else:
            yield from (event for event in reader.step(entry) if event.seq > after)
    rest = reader.rest() if not driven else None
    if rest is not None and rest.seq > after:
        yield rest


class Outbox:
    """Events wait here until the entries before them are committed. A subscriber of its session."""

    def __init__(self, session: Session, clock: Clock, run_id: str) -> None:
        self._session = session
        self._session_id = session.session_id
        self._clock = clock
        self.run_id = run_id
        self.status: RunStatus = "idle"
        self._seq = 0
        self._waiting: list[RunEvent] = []
        session.subscribe(self)

    def close(self) -> None:
        self._session.unsubscribe(self)

    def take_over(self) -> None:
        """Number the events of a run that another driver began."""
        epoch = self._session.lease.epoch if self._session.lease is not None else 0
        self._seq = self._session.tail_seq * STRIDE + _LATER + epoch % 4_000 * 100

    def step(self, entry: Entry) -> None:
        for event in events_of(entry, self._session.state):
            self._seq = event.seq
            self._waiting.append(event)
        self._seq = max(self._seq, entry.seq * STRIDE)

    def refold(self, entries: Sequence[Entry]) -> None:
        """Events that were shown stay as they were."""

    def take(self) -> list[RunEvent]:
        """What waits, to be shown once the entries staged so far are committed."""
        taken, self._waiting = self._waiting, []
        return taken

    def rest(self, result: RunResult[Any]) -> RunEvent:
        """The last event of a run that is let go, under the number that a reader of the log gives it."""
        self._seq = max(self._seq, self._session.tail_seq * STRIDE + _LATER - 2)
        return self.event(events.RunEnded, result=result)

    def add(self, kind: Any, **fields: Any) -> None:
        self._waiting.append(self.event(kind, **fields))

    def event(self, kind: Any, **fields: Any) -> RunEvent:
        self._seq += 1
        return kind(
            seq=self._seq,
            session_id=self._session.session_id,
            run_id=self.run_id,
            timestamp=self._clock.now(),
            **fields,
        )

    def delta(self, delta: MessageDelta, index: int, attempt: int) -> RunEvent:
        self._seq += 1
        return DELTA_EVENTS[delta.kind](
            seq=self._seq,
            session_id=self._session_id,
            run_id=self.run_id,
            timestamp=delta.timestamp,
            model_call_index=index,
            attempt=attempt,
            delta=delta,  # pyright: ignore[reportArgumentType]
        )

    def go(self, status: RunStatus) -> None:
        if status == self.status:
            return
        check_transition(self.status, status)
        _loop.debug("%s %s: %s → %s", self._session.session_id, self.run_id, self.status, status)
        self.add(events.StatusChanged, status=status, previous=self.status)
        self.status = status


# ── the events of a run, kept for those who watch it ──

_KEPT = 10_000
"""Events that are kept for watchers who come late or read slowly."""

_LOOSE = 16
"""How many of them may wait until they are kept in fewer bytes."""

_PIECES = {"text": "text_delta", "thinking": "text_delta", "tool_call_args": "args_text_delta"}
"""Kind of delta that is a piece of a text → the field that has it."""


class _Said:
    """Events of deltas that continue each other, kept as the first of them and the pieces of text: most of
    what a run shows, and the text itself is kept by the answer anyway."""

    __slots__ = ("_field", "_first", "_pieces", "_times", "seq")

    def __init__(self, first: Any, field: str) -> None:
        self._first = first
        self._field = field
        self._pieces: list[str] = [getattr(first.delta.payload, field)]
        self._times: list[str] = [first.timestamp]
        self.seq: int = first.seq
        """The number of the last one."""

    @property
    def first(self) -> int:
        return self._first.seq

    def __len__(self) -> int:
        return len(self._pieces)

    def take(self, event: Any) -> bool:
        """Add ``event``; False when it does not continue what is here."""
        first, delta, count = self._first, event.delta, len(self._pieces)
        payload, begun = delta.payload, first.delta
        if (
            event.seq != self.seq + 1
            or delta.seq != begun.seq + count
            or delta.kind != begun.kind
            or count == _KEPT // 10
        ):
            return False
        if delta.kind == "tool_call_args":
            if payload.tool_call_id != begun.payload.tool_call_id:
                return False
        elif payload.provider_data is not None or begun.payload.provider_data is not None:
            return False
        self._pieces.append(getattr(payload, self._field))
        self._times.append(event.timestamp)
        self.seq += 1  # last: a watcher in another thread may be reading
        return True

    def between(self, number: int, last: int) -> Iterator[RunEvent]:
        """The events with numbers above ``number``, up to ``last``."""
        first, replace = self._first, msgspec.structs.replace
        for at in range(max(0, number - first.seq + 1), min(len(self._pieces), last - first.seq + 1)):
            time = self._times[at]
            payload = replace(first.delta.payload, **{self._field: self._pieces[at]})
            delta = replace(first.delta, seq=first.delta.seq + at, payload=payload, timestamp=time)
            yield replace(first, seq=first.seq + at, timestamp=time, delta=delta)


class Hub:
    """Belongs to the event loop that drives the run; watchers may be in others."""

    __slots__ = ("_count", "_events", "_packed", "_watchers", "closed")

    def __init__(self) -> None:
        self._events: list[RunEvent] = []
        """The newest."""
        self._packed: list[RunEvent | _Said] = []
        self._count = 0
        self._watchers: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self.closed = False

    @property
    def first(self) -> int | None:
        """The number of the oldest event that is kept."""
        for oldest in (*self._packed[:1], *self._events[:1]):
            return oldest.first if isinstance(oldest, _Said) else oldest.seq
        return None

    @property
    def last(self) -> int | None:
        """The number of the newest event."""
        for newest in (*self._events[-1:], *self._packed[-1:]):
            return newest.seq
        return None

    def add(self, event: RunEvent) -> None:
        self._events.append(event)
        if self._watchers or len(self._events) > _LOOSE:
            self.publish(())

    def publish(self, told: Sequence[RunEvent]) -> None:
        self._events.extend(told)
        if len(self._events) > _LOOSE:
            self._pack()
        if self._watchers:
            self._wake()

    def _pack(self) -> None:
        packed = self._packed
        for event in self._events:
            pieces = isinstance(event, events.TextDelta | events.ThinkingDelta | events.ToolCallDelta)
            field = _PIECES.get(event.delta.kind) if pieces else None
            if field is None:
                packed.append(event)
            elif not (packed and isinstance(last := packed[-1], _Said) and last.take(event)):
                packed.append(_Said(event, field))
        self._count += len(self._events)
        self._events = []  # now: a reader in another thread finds each event in one of the two
        if self._count > 2 * _KEPT:
            gone = 0
            while self._count > _KEPT:
                oldest = packed[gone]
                self._count -= len(oldest) if isinstance(oldest, _Said) else 1
                gone += 1
            del packed[:gone]

    def close(self) -> None:
        """The run is not driven here any more."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        for event, loop in list(self._watchers.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def events(self, after: int) -> AsyncIterator[RunEvent]:
        """Events with numbers above ``after``, until the hub is closed. A watcher that reads too slowly
        misses what is no longer kept; the log has the entries."""
        news = asyncio.Event()
        self._watchers[news] = asyncio.get_running_loop()
        try:
            while True:
                news.clear()
                closed = self.closed
                for event in self._after(after):
                    after = event.seq
                    yield event
                if closed:
                    return
                if (last := self.last) is None or last <= after:
                    await news.wait()
        finally:
            del self._watchers[news]

    def _after(self, number: int) -> Iterator[RunEvent]:
        newest = self._events[:]  # first, as they are packed in the other order
        packed = self._packed[bisect_right(self._packed, number, key=_number) :]
        reached = packed[-1].seq if packed else number  # the last text may grow while it is read
        for kept in packed:
            if isinstance(kept, _Said):
                yield from kept.between(number, reached)
            else:
                yield kept
        yield from (event for event in newest if event.seq > reached)


def _number(kept: RunEvent | _Said) -> int:
    return kept.seq
