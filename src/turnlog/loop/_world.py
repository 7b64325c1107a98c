"""What reaches a run from outside: hooks, messages that were sent to it, facts, a pause, an abort."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from turnlog.contract import ToolCallRequest
from turnlog.history import CallState
from turnlog.tools import ToolAnswer

from ._phases import request_for
from ._ports import (
    AbortScope,
    Change,
    Fact,
    HookPoint,
    Hooks,
    Question,
    RunIds,
    RunInterrupted,
    Said,
    Veto,
    inside,
)


@dataclass(slots=True)
class Steering:
    """What was sent to a run in progress, until it can take it in."""

    waiting: list[Said] = field(default_factory=list[Said])
    facts: list[Fact] = field(default_factory=list[Fact])
    closed: bool = False
    paused: bool = False

    def tell(self, fact: Fact) -> None:
        self.facts.append(fact)

    def take_facts(self) -> list[Fact]:
        taken, self.facts = self.facts, []
        return taken


class LiveWorld:
    def __init__(self, ids: RunIds, hooks: Hooks, scope: AbortScope, steering: Steering) -> None:
        self._ids = ids
        self._hooks = hooks
        self._steering = steering
        self.scope = scope

    @property
    def paused(self) -> bool:
        return self._steering.paused

    def interrupted(self) -> None:
        if self.scope.reason is not None:
            raise RunInterrupted(self.scope.reason)

    def take_steering(self) -> list[Said]:
        taken, self._steering.waiting = self._steering.waiting, []
        return taken

    def take_facts(self) -> list[Fact]:
        return self._steering.take_facts()

    def close(self) -> None:
        self._steering.closed = True

    async def hook(self, point: HookPoint, *args: object) -> None:
        if self._hooks.has(point):
            given = [request_for(arg) if isinstance(arg, CallState) else arg for arg in args]
            await self._called(self._hooks.call, point, *given)

    async def check_call(self, request: ToolCallRequest) -> Veto | Change | Question | None:
        return await self._called(self._hooks.check_call, request) if self._hooks.check_tool else None

    async def check_result(self, call: CallState, answer: ToolAnswer) -> ToolAnswer:
        checks = (self._hooks.check_answer, request_for(call), answer) if self._hooks.check_result else None
        return answer if checks is None else await self._called(*checks)

    async def _called(self, hooks: Callable[..., Awaitable[Any]], *args: object) -> Any:
        token = inside.set((*inside.get(), self._ids.session_id))
        try:
            with self.scope:
                return await hooks(self._ids, *args)
        finally:
            inside.reset(token)
