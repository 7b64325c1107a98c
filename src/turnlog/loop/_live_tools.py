"""The door to real tools: judges calls, runs them as tasks, and hands over what they say as they say it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from turnlog.approvals import ApprovalPolicy, check_decision, denial_text, policy_denial_text
from turnlog.approvals import judge as judge_call
from turnlog.context import preview_result
from turnlog.contract import (
    READ_ARTIFACT,
    RECALL,
    AgentError,
    Clock,
    JsonObject,
    Runtime,
    Store,
    ToolCallRequest,
    ToolSpec,
    request_of,
    scrub,
)
from turnlog.observe import get_logger
from turnlog.tools import AgentInfo, ToolAnswer, ToolContext, ToolExecutor, ToolRegistry

from ._doors import Answer, Ask, Finished, Judgement, Progress, Start, ToolNews
from ._shared import SHARE, SessionShare
from ._state import CallState, RunState

get_logger("tools")  # the category that the executor writes tracebacks to


@dataclass(frozen=True, slots=True)
class ToolWorld:
    """What a tool may be handed: who runs it, and where."""

    session_id: str
    run_id: str
    store: Store
    clock: Clock
    agent: Any = None
    deps: Any = None
    runtime: Runtime | None = None
    sandbox: str | None = None
    share: SessionShare | None = None


class LiveTools:
    def __init__(
        self,
        registry: ToolRegistry,
        executor: ToolExecutor,
        approval: ApprovalPolicy | None,
        world: ToolWorld,
        *,
        approval_ttl: float | None = None,
    ) -> None:
        self._registry = registry
        self._executor = executor
        self._approval = approval
        self._world = world
        self._tasks: dict[str, tuple[CallState, asyncio.Task[ToolAnswer]]] = {}
        self._stopping = False
        self._news: asyncio.Queue[ToolNews] = asyncio.Queue()
        self._approval_ttl = approval_ttl

    def specs(self, state: RunState) -> list[ToolSpec]:
        """What the run offers. Memory tools come with the first thing there is to bring back: a fold breaks
        the wire anyway, so offering them then costs no cache."""
        started = state.started
        if started is None:
            return []
        offered = self._registry.offered(started.tool_policy, started.allowed_tools, started.tool_order)
        hidden = {RECALL} if not state.has_folds else set[str]()
        if not state.has_artifacts:
            hidden.add(READ_ARTIFACT)
        return [spec for spec in offered if spec.name not in hidden]

    async def judge(self, call: CallState, state: RunState) -> Judgement:
        request = _request(call)
        decided = call.decided
        if call.started is not None and decided is not None and decided.action in ("deny", "expire"):
            # Not running it again does not undo what it may have done.
            unknown = ToolAnswer.unknown(request.tool_name)
            return Answer(unknown.noted(f"{decided.decided_by} did not let it run again."))
        refused = self._refuse(request, state, first=call.started is None)
        if refused is not None:
            return refused
        tool = self._registry.get(request.tool_name)
        assert tool is not None
        if call.requested is not None and decided is not None and decided.action in ("deny", "expire"):
            return Answer(ToolAnswer.denied(denial_text(call.requested, decided)))
        checked = self._executor.validate(request)
        if isinstance(checked, ToolAnswer):
            return Answer(checked)
        assert state.started is not None
        if not self._is_approved(call):
            verdict = judge_call(self._approval, request, tool, state.started.tool_policy)
            if verdict.action == "deny":
                return Answer(ToolAnswer.denied(policy_denial_text(tool.name, verdict.reason)))
            if verdict.action == "ask":
                return Ask(verdict.reason, self._world.sandbox, self._expiry())
        return Start(alone=not tool.concurrent)

    def _is_approved(self, call: CallState) -> bool:
        """Approved here, and for what would run. A fork takes the past along, but not what it allowed: that
        was to happen once."""
        requested, decided = call.requested, call.decided
        if requested is None or decided is None or call.decided_in != self._world.session_id:
            return False
        check_decision(requested, decided, session_id=call.asked_in)
        return decided.action in ("approve", "modify")

    def _expiry(self) -> str | None:
        if self._approval_ttl is None:
            return None
        return later(self._world.clock.now(), self._approval_ttl)

    def _refuse(self, request: ToolCallRequest, state: RunState, *, first: bool) -> Answer | None:
        started = state.started
        assert started is not None
        allowed = [spec.name for spec in self.specs(state)]
        if request.tool_name not in allowed:
            known = ", ".join(allowed) or "none"
            text = f"there is no tool {request.tool_name!r}; available: {known}"
            return Answer(ToolAnswer.failed("ToolNotFound", text))
        limit = started.tool_policy.max_calls_per_run
        if limit is not None and first and state.calls_started >= limit:
            text = f"this run may make {limit} tool calls and has made them; answer with what you have"
            return Answer(ToolAnswer.failed("ToolCallLimit", text))
        return None

    async def recover(self, call: CallState, state: RunState) -> Judgement:
        """Never guess: run again only what is safe to run again, ask where there is somebody to ask."""
        request = _request(call)
        tool = self._registry.get(request.tool_name)
        # What it started with may not fit what it is now: then it cannot be run again, and may have run.
        fits = not isinstance(self._executor.validate(request), ToolAnswer)
        if tool is not None and tool.rerunnable and fits:
            return Start(alone=not tool.concurrent)
        if tool is not None and tool.reconcile is not None and call.started is not None:
            ctx = self._context(call, call.started.idempotency_key, call.started.attempt)
            found = await self._executor.reconcile(tool, ctx, request.arguments or {})
            if found is not None:
                return Answer(found)
        if state.started is not None and state.started.tool_policy.outcome_unknown == "human":
            reason = (
                "it was running when the process stopped and may have taken effect; approve to run it again"
            )
            return Ask(reason, self._world.sandbox, self._expiry())
        return Answer(ToolAnswer.unknown(request.tool_name))

    def start(self, call: CallState, key: str, attempt: int) -> None:
        call_id = call.call.tool_call_id
        task = asyncio.create_task(self._run(call, key, attempt), name=f"turnlog tool {call_id}")
        self._tasks[call_id] = (call, task)
        task.add_done_callback(lambda task: self._tell(call, task))

    async def _run(self, call: CallState, key: str, attempt: int) -> ToolAnswer:
        if self._world.share is not None:
            SHARE.set(self._world.share)  # in the context of this task, and of what it starts
        answer = await self._executor.execute(_request(call), self._context(call, key, attempt))
        # The tool ran, and that must be told, though all of its output is not kept.
        try:
            return await self._keep_artifact(answer)
        except AgentError as error:
            return self._cut(answer, error.message)
        except asyncio.CancelledError:
            return self._cut(answer, "the run was stopped")
        except Exception as error:
            return self._cut(answer, f"{type(error).__name__}: {scrub(str(error))}")

    def _tell(self, call: CallState, task: asyncio.Task[ToolAnswer]) -> None:
        """However the task ended: whoever waits for news of it must not wait for ever."""
        if not task.cancelled():
            answer = task.result()  # the executor and this class make every failure a value
        elif self._stopping:
            return  # it never got as far as its body
        else:
            answer = ToolAnswer.failed(
                "ToolCancelled", "it was stopped by something outside of the run; it may have taken effect"
            )
        self._news.put_nowait(Finished(call, answer))

    async def _keep_artifact(self, answer: ToolAnswer) -> ToolAnswer:
        """What is too long to send whole is kept apart: the model sees a preview and how to read on."""
        share = self._world.share
        if share is None or (answer.artifact is None and isinstance(answer.content, list)):
            return answer
        data = answer.artifact if answer.artifact is not None else answer.text.encode()
        handle = f"{READ_ARTIFACT} sha256-{hashlib.sha256(data).hexdigest()}"
        preview = preview_result(share.warm.projection, data.decode("utf-8", "replace"), handle)
        if preview is None and answer.artifact is None:
            return answer
        name = await self._world.store.put_blob(data)
        if preview is not None and not isinstance(answer.content, list):
            return replace(answer, content=preview, artifact=None, kept_as=name)
        noted = answer.noted(f"[whole output: {len(data)} bytes, {handle}]")
        return replace(noted, artifact=None, kept_as=name)

    def _cut(self, answer: ToolAnswer, why: str) -> ToolAnswer:
        lost = f"(the rest is lost: the store could not keep it: {why})"
        share = self._world.share
        preview = preview_result(share.warm.projection, answer.text, lost) if share else None
        if preview is not None and not isinstance(answer.content, list):
            return replace(answer, content=preview, artifact=None)
        return replace(answer.noted(lost), artifact=None)

    def _context(self, call: CallState, key: str, attempt: int) -> ToolContext:
        world = self._world

        def progress(text: str | None = None, data: JsonObject | None = None) -> None:
            self._news.put_nowait(Progress(call, text, data))

        return ToolContext(
            session_id=world.session_id,
            run_id=world.run_id,
            tool_call_id=call.call.tool_call_id,
            tool_name=call.call.tool_name,
            idempotency_key=key,
            attempt=attempt,
            agent=AgentInfo(getattr(world.agent, "name", None)),
            deps=world.deps,
            runtime=world.runtime,
            clock=world.clock,
            on_progress=progress,
        )

    async def next(self) -> ToolNews:
        news = await self._news.get()
        if isinstance(news, Finished):
            self._tasks.pop(news.call.call.tool_call_id, None)
        return news

    @property
    def running(self) -> int:
        return len(self._tasks)

    async def stop(self) -> list[Finished]:
        self._stopping = True
        tasks = [task for _, task in self._tasks.values()]
        for call_id, (_, task) in self._tasks.items():
            if not self._executor.cancel(call_id):
                task.cancel()  # it never got as far as its body
        await _all_ended(tasks)
        self._tasks.clear()
        finished: list[Finished] = []
        while not self._news.empty():
            news = self._news.get_nowait()
            if isinstance(news, Finished):
                finished.append(Finished(news.call, _as_skipped(news.answer)))
        return finished


async def _all_ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Wait for tasks that were told to end, also when cancelled: it is bounded, and nobody else waits for
    them. A cancellation ends their patience, and is felt at the caller's next await."""
    again = False
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            again = True
            for task in tasks:
                task.cancel()
    if again and (us := asyncio.current_task()) is not None:
        us.uncancel()
        us.cancel()


def _request(call: CallState) -> ToolCallRequest:
    request = request_of(call.call, call.parse_error)
    if call.arguments is not call.call.arguments:
        return msgspec.structs.replace(request, arguments=call.arguments, parse_error=None)
    return request


def later(moment: str, seconds: float) -> str:
    """``moment`` plus ``seconds``, in the form a clock gives."""
    then = datetime.fromisoformat(moment) + timedelta(seconds=seconds)
    return then.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _as_skipped(answer: ToolAnswer) -> ToolAnswer:
    return replace(answer, status="skipped") if answer.error_code == "ToolCancelled" else answer
