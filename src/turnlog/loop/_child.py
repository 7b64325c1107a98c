"""An agent as the tool of another: each call is a run in a session of its own, linked to the call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from turnlog.contract import JsonObject, LoopLimits, RunResult, Store
from turnlog.history import BY_CHILD, SessionState
from turnlog.tools import Tool, ToolContext, ToolError, ToolOptions, ToolResult

from ._budget import Budget, ChildBody, child_session, spent_in
from ._events import result_of
from ._folds import SHARE
from ._handle import Session
from ._loop import AgentLoop
from ._options import RunDefaults
from ._ports import inside

_DEEPEST = 10
"""Levels of agents below each other."""

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
    call that is made again, after a crash or after a person was asked, finds its child. One that has ended is
    not run again."""

    def __init__(self, loop: AgentLoop, defaults: RunDefaults) -> None:
        self._loop = loop
        self._defaults = defaults
        self._loops: list[AgentLoop] = [loop]

    @property
    def may_ask(self) -> bool:
        return self._loop.parts.approvals.handler is not None

    def tool(self, description: str, name: str | None, options: ToolOptions) -> Tool:
        # Keyed, and without a time-out of its own: the limits of the parent's run reach down.
        usual: ToolOptions = {"concurrent": True, "keyed": True, "timeout": None}
        chosen: ToolOptions = {**usual, **options}
        return Tool.from_schema(name or self._defaults.name, description, _SCHEMA, self, **chosen)

    async def __call__(self, arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        if len(inside.get()) > _DEEPEST:
            raise ToolError(
                f"agents have called each other {_DEEPEST} levels deep, and no deeper; answer with what you "
                "have"
            )
        share = SHARE.get(None)
        store = share.store if share is not None else self._loop.parts.store
        child = child_session(ctx.session_id or "", ctx.tool_call_id, ctx.tool_name or self._defaults.name)
        ctx.progress(session=child)
        budget = share.budget if share is not None else None
        defaults = replace(
            self._defaults,
            parent=(ctx.session_id, ctx.tool_call_id) if ctx.session_id else None,
            under=(budget, ctx.tool_call_id) if budget is not None else None,
            limits=_within(self._defaults.limits, budget),
        )
        session: Session[Any] = Session(self._loop_on(store), defaults, child)
        deps = self._defaults.deps if self._defaults.deps is not None else ctx.deps
        result = await _run(session, store, arguments["input"], deps, defaults.parent)
        if budget is not None:
            budget.note(ctx.tool_call_id, spent_in(result.usage))
        return _answer(self._defaults.name, result)

    def _loop_on(self, store: Store) -> AgentLoop:
        """The child's log stands beside its parent's."""
        for loop in self._loops:
            if loop.parts.store is store:
                return loop
        self._loops.append(AgentLoop(replace(self._loop.parts, store=store)))
        return self._loops[-1]


async def _run(
    session: Session[Any], store: Store, text: str, deps: Any, parent: tuple[str, str] | None
) -> RunResult[Any]:
    """Begin the child, continue it, or read what it said when it is over."""
    state = SessionState()
    if await store.tail(session.session_id) is not None:
        state = SessionState.of(await store.load(session.session_id))
    result = result_of(session.session_id, state) if state.ended is not None else None
    if result is None and state.is_open:
        result = await session.resume(deps=deps, check=False)
    if result is None:
        metadata = {"parent_session": parent[0], "parent_call": parent[1]} if parent is not None else None
        result = await session.run(text, deps=deps, metadata=metadata, check=False)
    return result


def _within(own: LoopLimits, budget: Budget | None) -> LoopLimits:
    """The child's limits, and no more than what the runs above it have left."""
    tokens, cost = own.max_tokens, own.max_cost
    for left, dollars in budget.all_left() if budget is not None else ():
        tokens = left if tokens is None or (left is not None and left < tokens) else tokens
        cost = dollars if cost is None or (dollars is not None and dollars < cost) else cost
    return msgspec.structs.replace(own, max_tokens=tokens, max_cost=cost)


def _answer(name: str, result: RunResult[Any]) -> ToolResult:
    if result.status in ("awaiting_human", "paused"):
        words = "waits for a person" if result.status == "awaiting_human" else "was paused"
        return ToolResult.deferred(f"{name} {words}", by=f"{BY_CHILD}{result.session_id}")
    if result.last_error is not None:
        failed = f"{name} failed: {result.last_error.code}: {result.last_error.message}"
        return ToolResult(failed, is_error=True, usage=result.usage)
    return ToolResult(result.output, usage=result.usage)
