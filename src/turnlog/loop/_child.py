"""An agent as the tool of another: each call is a run in a session of its own, linked to the call."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import msgspec

from turnlog.contract import JsonObject, LoopLimits, RunResult, Store
from turnlog.history import SessionState
from turnlog.tools import Tool, ToolContext, ToolOptions, ToolResult

from ._control import BY_CHILD, ChildBody
from ._events import result_of
from ._folds import SHARE
from ._handle import Session
from ._loop import AgentLoop
from ._options import RunDefaults

_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "input": {"type": "string", "description": "What to do, with everything that has to be known for it."}
    },
    "required": ["input"],
    "additionalProperties": False,
}


class ChildAgent(ChildBody):
    """The body of the tool. The name of the child session follows from the parent's session and the call: a
    call that is run again after a crash finds its child, and a child that has ended is not run again."""

    def __init__(self, loop: AgentLoop, defaults: RunDefaults) -> None:
        self._loop = loop
        self._defaults = defaults
        self._loops: list[AgentLoop] = [loop]

    def tool(self, description: str, name: str | None, options: ToolOptions) -> Tool:
        # Keyed, and without a time-out of its own: the limits of the parent's run reach down.
        usual: ToolOptions = {"concurrent": True, "keyed": True, "timeout": None}
        chosen: ToolOptions = {**usual, **options}
        return Tool.from_schema(name or self._defaults.name, description, _SCHEMA, self, **chosen)

    async def __call__(self, arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        share = SHARE.get(None)
        store = share.store if share is not None else self._loop.parts.store
        digest = hashlib.sha256(f"{ctx.session_id}\n{ctx.tool_call_id}".encode()).hexdigest()[:16]
        child = f"{ctx.tool_name or self._defaults.name}-{digest}"
        ctx.progress(session=child)
        limits = self._defaults.limits
        if share is not None:
            limits = _within(limits, share.folds.session.state)
        parent = (ctx.session_id, ctx.tool_call_id) if ctx.session_id else None
        return await self._run(store, child, ctx.deps, arguments["input"], parent, limits)

    async def finish(self, store: Store, child: str, deps: Any) -> ToolResult:
        return await self._run(store, child, deps, None, None, self._defaults.limits)

    async def _run(
        self,
        store: Store,
        child: str,
        deps: Any,
        text: str | None,
        parent: tuple[str, str] | None,
        limits: LoopLimits,
    ) -> ToolResult:
        session: Session[Any] = Session(self._loop_on(store), replace(self._defaults, parent=parent), child)
        deps = self._defaults.deps if self._defaults.deps is not None else deps
        state = SessionState()
        if await store.tail(child) is not None:
            state = SessionState.of(await store.load(child))
        result = result_of(child, state) if state.ended is not None else None
        if result is None and state.is_open:
            result = await session.resume(deps=deps, check=False)
        if result is None:
            metadata = {"parent_session": parent[0], "parent_call": parent[1]} if parent is not None else None
            result = await session.run(text or "", deps=deps, limits=limits, metadata=metadata, check=False)
        return _answer(self._defaults.name, result)

    def _loop_on(self, store: Store) -> AgentLoop:
        """The child's log stands beside its parent's."""
        for loop in self._loops:
            if loop.parts.store is store:
                return loop
        self._loops.append(AgentLoop(replace(self._loop.parts, store=store)))
        return self._loops[-1]


def _within(own: LoopLimits, parent: SessionState) -> LoopLimits:
    """The child's limits, and no more than what the parent's run has left."""
    if parent.started is None:
        return own
    limits, used = parent.started.limits, parent.usage
    tokens, cost = own.max_tokens, own.max_cost
    if limits.max_tokens is not None:
        left = max(0, limits.max_tokens - (used.total_tokens if used is not None else 0))
        tokens = left if tokens is None else min(tokens, left)
    if limits.max_cost is not None:
        rest = max(0.0, limits.max_cost - ((used.cost if used is not None else None) or 0.0))
        cost = rest if cost is None else min(cost, rest)
    return msgspec.structs.replace(own, max_tokens=tokens, max_cost=cost)


def _answer(name: str, result: RunResult[Any]) -> ToolResult:
    if result.status in ("awaiting_human", "paused"):
        words = "waits for a person" if result.status == "awaiting_human" else "was paused"
        return ToolResult.deferred(f"{name} {words}", by=f"{BY_CHILD}{result.session_id}")
    if result.last_error is not None:
        failed = f"{name} failed: {result.last_error.code}: {result.last_error.message}"
        return ToolResult(failed, is_error=True, usage=result.usage)
    return ToolResult(result.output, usage=result.usage)
