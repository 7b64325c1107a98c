"""What the stores without SQL share: leases and the control queue, as rows that Python changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import msgspec

from ..contract import Control, JsonObject, Lease, LeaseHolder
from ._base import ANSWER_KEPT, StoreBase, check_control, check_session_id, exact_time, fenced, leased

T = TypeVar("T")


class LeaseRow(msgspec.Struct):
    """Who may write to a session, and from when on a worker may continue it."""

    epoch: int = 0
    owner: str | None = None
    until: float = 0.0
    turn: int = 0
    """Counts the writes of a row that is kept in a file."""
    wake_at: str | None = None

    def check(self, lease: Lease | None) -> None:
        """Raise ``SessionConcurrentWrite`` when ``lease`` was lost."""
        if lease is not None and (lease.epoch, lease.owner) != (self.epoch, self.owner):
            raise fenced(lease, self.epoch)

    def claim(self, session_id: str, owner: str, ttl: float, now: float) -> Lease:
        if self.owner not in (None, owner) and self.until > now:
            raise leased(session_id, str(self.owner), self.until - now)
        self.epoch, self.owner, self.until = self.epoch + 1, owner, now + ttl
        return Lease(session_id=session_id, owner=owner, epoch=self.epoch, ttl=ttl)

    def renew(self, lease: Lease, until: float) -> None:
        self.check(lease)
        self.until = until

    def release(self, lease: Lease) -> None:
        if (lease.epoch, lease.owner) == (self.epoch, self.owner):
            self.owner, self.until = None, 0.0

    def wake(self, at: str | None) -> None:
        self.wake_at = at

    def holder(self, now: float) -> LeaseHolder | None:
        if self.owner is None or self.until <= now:
            return None
        return LeaseHolder(owner=self.owner, epoch=self.epoch, seconds_left=self.until - now)

    def lets_in(self, now: str, time: float) -> bool:
        """Whether a worker may continue the session: nobody holds it, and it is not to sleep longer."""
        return self.holder(time) is None and (self.wake_at is None or self.wake_at <= now)


class Posted(msgspec.Struct, frozen=True):
    control: Control
    answer: JsonObject | None = None
    answered: float = 0.0


class Controls:
    """A control queue: what was posted, by id, oldest first."""

    def __init__(self, rows: Iterable[Posted] = ()) -> None:
        self.rows = {row.control.id: row for row in rows}

    def post(self, control: Control) -> None:
        self.rows.setdefault(control.id, Posted(control))

    def posted(self, session_id: str | None) -> list[Control]:
        waiting = [row.control for row in self.rows.values() if row.answer is None]
        return [control for control in waiting if session_id in (None, control.session_id)]

    def answer(self, control_id: str, answer: JsonObject, now: float) -> None:
        row = self.rows.get(control_id)
        if row is not None and row.answer is None:
            self.rows[control_id] = Posted(row.control, answer, now)
        for id, each in list(self.rows.items()):
            if each.answer is not None and each.answered < now - ANSWER_KEPT:
                del self.rows[id]

    def take_answer(self, control_id: str) -> JsonObject | None:
        row = self.rows.get(control_id)
        if row is None or row.answer is None:
            return None
        del self.rows[control_id]
        return row.answer

    def withdraw(self, control_id: str) -> bool:
        row = self.rows.get(control_id)
        if row is not None and row.answer is None:
            del self.rows[control_id]
        return row is None or row.answer is None

    def drop(self, session_ids: Collection[str]) -> None:
        for id, row in list(self.rows.items()):
            if row.control.session_id in session_ids:
                del self.rows[id]


class RowStore(StoreBase):
    # What each store does its own way

    async def _change_lease(
        self, session_id: str, change: Callable[[LeaseRow], T], *, make: bool = False
    ) -> T:
        """Change a session's row. One that has no entries is not found, unless the row may be made."""
        raise NotImplementedError

    async def _lease(self, session_id: str) -> LeaseRow:
        """The row as it is now."""
        raise NotImplementedError

    async def _change_controls(self, change: Callable[[Controls], T]) -> T:
        raise NotImplementedError

    async def _controls_now(self) -> Controls:
        """The queue as it is now, to look at."""
        raise NotImplementedError

    # Leases

    async def claim(self, session_id: str, *, owner: str, ttl: float) -> Lease:
        check_session_id(session_id)
        now = self._now()
        return await self._change_lease(
            session_id, lambda row: row.claim(session_id, owner, ttl, now), make=True
        )

    async def renew(self, lease: Lease) -> None:
        until = self._now() + lease.ttl
        await self._change_lease(lease.session_id, lambda row: row.renew(lease, until), make=True)

    async def release(self, lease: Lease) -> None:
        await self._change_lease(lease.session_id, lambda row: row.release(lease), make=True)

    async def wake(self, session_id: str, at: str | None) -> None:
        time = None if at is None else exact_time("at", at)
        await self._change_lease(session_id, lambda row: row.wake(time))

    async def holder(self, session_id: str) -> LeaseHolder | None:
        return (await self._lease(session_id)).holder(self._now())

    # Controls

    async def post(self, control: Control) -> None:
        check_control(control)
        await self._change_controls(lambda queue: queue.post(control))

    async def posted(self, session_id: str | None = None) -> list[Control]:
        return (await self._controls_now()).posted(session_id)

    async def answer_control(self, control_id: str, answer: JsonObject) -> None:
        now = self._now()
        await self._change_controls(lambda queue: queue.answer(control_id, answer, now))

    async def take_answer(self, control_id: str) -> JsonObject | None:
        row = (await self._controls_now()).rows.get(control_id)
        if row is None or row.answer is None:
            return None
        return await self._change_controls(lambda queue: queue.take_answer(control_id))

    async def withdraw(self, control_id: str) -> bool:
        return await self._change_controls(lambda queue: queue.withdraw(control_id))
