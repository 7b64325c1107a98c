"""A run and the children of its calls: how these are named, and what all of them may spend together."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from turnlog.contract import AgentError, TokenUsage
from turnlog.history import Session


class ChildBody:
    """The body of a tool that has its work done by another agent, in a session of its own."""

    @property
    def may_ask(self) -> bool:
        """Whether somebody is asked, here, what a person has to decide."""
        raise NotImplementedError


def child_session(session_id: str, call_id: str, tool_name: str) -> str:
    """The session in which the work of a call is done: a call that is made again finds it."""
    digest = hashlib.sha256(f"{session_id}\n{call_id}".encode()).hexdigest()[:16]
    return f"{tool_name}-{digest}"


class Spent(NamedTuple):
    tokens: int = 0
    cost: float = 0.0

    def plus(self, other: Spent) -> Spent:
        return Spent(self.tokens + other.tokens, self.cost + other.cost)


def spent_in(usage: TokenUsage | None) -> Spent:
    return Spent(usage.total_tokens, usage.cost or 0.0) if usage is not None else Spent()


class Budget:
    """Kept in memory beside a run. What the run itself used is in its state; what its children have used, and
    what their calls in progress are expected to use, is not yet."""

    def __init__(self, session: Session, under: tuple[Budget, str] | None = None) -> None:
        """``under`` is the budget of the run that called this one, and the call."""
        self._session = session
        self._parent = under[0] if under is not None else None
        self._calls: dict[str, Budget | Spent] = {}
        """By call: the budget of the child at work, or what one that stopped has used."""
        self._in_progress: list[Spent] = []
        self._freed = asyncio.Event()
        if under is not None:
            under[0].note(under[1], self)

    def note(self, call_id: str, spent: Budget | Spent) -> None:
        """Count what the child of a call uses, until the call's result brings it into the log."""
        self._calls = {id: each for id, each in self._calls.items() if self._is_open(id)}
        self._calls[call_id] = spent

    def _is_open(self, call_id: str) -> bool:
        call = self._session.state.calls.get(call_id)
        return call is not None and not call.answered

    def spent(self) -> Spent:
        total = spent_in(self._session.state.usage)
        for call_id, each in self._calls.items():
            if self._is_open(call_id):
                total = total.plus(each if isinstance(each, Spent) else each.spent())
        return total

    def left(self) -> tuple[int | None, float | None]:
        """Tokens and dollars that this run and its children may still use; None where there is no limit."""
        started, spent = self._session.state.started, self.spent()
        if started is None:
            return None, None
        tokens, cost = started.limits.max_tokens, started.limits.max_cost
        return (
            None if tokens is None else max(0, tokens - spent.tokens),
            None if cost is None else max(0.0, cost - spent.cost),
        )

    def all_left(self) -> Iterator[tuple[int | None, float | None]]:
        """What is left here, and of every budget above."""
        yield self.left()
        for above in self._above():
            yield above.left()

    def check(self) -> None:
        """Raises ``RunTokenLimit`` or ``RunCostLimit`` when nothing is left of a budget above this run."""
        for above in self._above():
            tokens, cost = above.left()
            if tokens == 0 or cost == 0:
                code, name = ("RunTokenLimit", "max_tokens") if tokens == 0 else ("RunCostLimit", "max_cost")
                raise AgentError(
                    code,
                    f"nothing is left of the budget of session {above.session_id}, whose run called this "
                    f"one: it is used up by that run and its children together; raise its LoopLimits.{name}",
                )

    @property
    def session_id(self) -> str:
        return self._session.session_id

    @property
    def is_shared(self) -> bool:
        return any(above.left() != (None, None) for above in self._above())

    def _above(self) -> Iterator[Budget]:
        above = self._parent
        while above is not None:
            yield above
            above = above._parent

    @asynccontextmanager
    async def turn(self, expected: Spent) -> AsyncGenerator[None]:
        """Room for a model call. Beside others it is made only where all of them are expected to fit into
        what is left; alone it is made while anything is left, as in a run without children. Raises as
        :meth:`check`."""
        while True:
            self.check()
            full = next((above for above in self._above() if not above._has_room(expected)), None)
            if full is None:
                break
            await full._freed.wait()
        above = list(self._above())
        for each in above:
            each._in_progress.append(expected)
        try:
            yield
        finally:
            for each in above:
                each._in_progress.remove(expected)
                freed, each._freed = each._freed, asyncio.Event()
                freed.set()

    def _has_room(self, expected: Spent) -> bool:
        if not self._in_progress:
            return True
        for each in self._in_progress:
            expected = expected.plus(each)
        tokens, cost = self.left()
        return (tokens is None or expected.tokens <= tokens) and (cost is None or expected.cost <= cost)
