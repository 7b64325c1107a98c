"""Staging, committing, and telling: what keeps the log, the state and the watchers in step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from logging import DEBUG
from typing import Any

from turnlog.context import Projection
from turnlog.contract import (
    Clock,
    DeltaShown,
    Entry,
    MessageDelta,
    ModelDeltaEvent,
    RunEvent,
    RunStatus,
    StatusEvent,
    StatusShown,
    check_transition,
    encode,
)
from turnlog.observe import get_logger

from ._warm import WarmSession

_history = get_logger("history")
_loop = get_logger("loop")


def log_entries(entries: Sequence[Entry]) -> None:
    for entry in entries:
        size = len(encode(entry.payload))
        _history.debug("%s #%d %s (%d bytes) %s", entry.session_id, entry.seq, entry.kind, size, entry.id)


class Recorder:
    """Entries are staged with what there is to tell about them; ``flush`` commits, then lets it be told."""

    def __init__(self, warm: WarmSession, clock: Clock, run_id: str) -> None:
        self.session = warm.session
        self.state = warm.state
        self._warm = warm
        self.clock = clock
        self.run_id = run_id
        self.status: RunStatus = "idle"
        self.shown = 0
        """Deltas of the open model call that reached the caller."""
        self.check: Callable[[Entry], None] | None = None
        """Sees every entry as it is staged; a replay compares it with the recorded one."""
        self.home: Callable[[], str] | None = None
        self._seq = 0
        self._untold: list[tuple[Any, Any]] = []

    def stage(self, entry: Entry) -> Entry:
        """Take a staged entry into the state. It is in the log after the next ``flush``."""
        if self.check is not None:
            self.check(entry)
        self._warm.step(entry)
        return entry

    @property
    def projection(self) -> Projection:
        return self._warm.projection

    @property
    def session_id(self) -> str:
        """The session whose name goes into keys and digests."""
        return self.home() if self.home is not None else self.session.session_id

    def count_on(self, after: int) -> None:
        """The next event has the number that follows ``after``."""
        self._seq = after

    def tell(self, event: Any, payload: Any) -> None:
        """Queue an event; watchers hear it once everything staged before it is committed."""
        self._untold.append((event, payload))

    def go(self, status: RunStatus) -> None:
        if status == self.status:
            return
        check_transition(self.status, status)
        _loop.debug("%s %s: %s → %s", self.session.session_id, self.run_id, self.status, status)
        self.tell(StatusEvent, StatusShown(status=status, previous=self.status))
        self.status = status

    def resume_status(self) -> None:
        """A resumed run starts where its log left it."""
        self.go("preparing")

    @property
    def broken(self) -> bool:
        """A write failed: the run is over, and what is in the log is all there is."""
        return self._warm.broken

    @property
    def dirty(self) -> bool:
        return bool(self._untold or self.session.staged)

    async def commit(self) -> None:
        """Write what is staged; what there is to tell about it waits for ``flush``."""
        if not self.session.staged:
            return
        drops = self.session.drops
        try:
            entries = await self.session.commit()
        finally:
            if self.session.drops != drops:
                # What was staged is not in the log, but the folds have seen it: they are of no more use.
                self._warm.broken = True
        if _history.isEnabledFor(DEBUG):
            log_entries(entries)

    async def flush(self) -> list[RunEvent]:
        await self.commit()
        untold, self._untold = self._untold, []
        return [self.event(kind, payload) for kind, payload in untold]

    def event(self, kind: Any, payload: Any) -> RunEvent:
        self._seq += 1
        return kind(
            seq=self._seq,
            session_id=self.session.session_id,
            run_id=self.run_id,
            timestamp=self.clock.now(),
            payload=payload,
        )

    def delta_event(self, delta: MessageDelta, index: int, attempt: int) -> ModelDeltaEvent:
        self._seq += 1
        return ModelDeltaEvent(
            seq=self._seq,
            session_id=self.session.session_id,
            run_id=self.run_id,
            timestamp=delta.timestamp,
            payload=DeltaShown(model_call_index=index, attempt=attempt, delta=delta),
        )
