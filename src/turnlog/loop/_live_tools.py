"""The port to real tools: judges calls, runs them as tasks, and reports progress and results as they come."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from turnlog.approvals import (
    Approvals,
    definition_hash,
    denial_text,
    is_approved,
    policy_denial_text,
)
from turnlog.approvals import judge as judge_call
from turnlog.contract import (
    READ_ARTIFACT,
    AgentError,
    Clock,
    JsonObject,
    Runtime,
    Secrets,
    Store,
    ToolAnswered,
    ToolCallRequest,
    ToolDeferred,
    ToolSpec,
    conversation,
    scrub,
    thaw,
)
from turnlog.history import CallState, SessionState, check_unchanged
from turnlog.observe import get_logger
from turnlog.tools import AgentInfo, Executor, GivenAnswer, Registry, Tool, ToolAnswer, ToolContext

from ._budget import ChildBody, child_session
from ._folds import SHARE, SessionShare
from ._handoff import Handoff, HandoffBody, is_handed
from ._journal import SessionJournal
from ._output import LiveOutput, final_tool, is_final
from ._phases import request_for
from ._ports import (
    Answer,
    Ask,
    Change,
    Finished,
    Judgement,
    Progress,
    Question,
    Start,
    ToolNews,
    Veto,
    inside,
)
from ._rerun import Recording

get_logger("tools")  # the category that the executor writes tracebacks to


@dataclass(frozen=True, slots=True)
class ToolWorld:
    """What a tool may be handed: who runs it, and where."""

    session_id: str
    run_id: str
    store: Store
    clock: Clock
    agent_name: str | None = None
    deps: Any = None
    runtime: Runtime | None = None
    sandbox: str | None = None
    share: SessionShare | None = None
    secrets: Secrets = field(default_factory=Secrets)
    speaker: Handoff | None = None
    """The agent that the conversation was handed to."""


class LiveTools:
    def __init__(
        self,
        registry: Registry,
        executor: Executor,
        approvals: Approvals,
        world: ToolWorld,
        output: LiveOutput,
        check: Callable[[ToolCallRequest], Awaitable[Veto | Change | Question | None]],
        recording: Recording | None = None,
    ) -> None:
        self._registry = registry
        self._executor = executor
        self._approvals = approvals
        self._world = world
        self._output = output
        self._check = check
        self._recording = recording
        self._tasks: dict[str, tuple[CallState, asyncio.Task[ToolAnswer]]] = {}
        self._stopping = False
        self._news: asyncio.Queue[ToolNews] = asyncio.Queue()

    def refresh(self) -> Awaitable[None] | None:
        share = self._world.share
        has_notes = share is not None and share.notes is not None
        # A registry of the user's own need not know whether it is fresh.
        is_fresh = getattr(self._registry, "is_fresh", False)
        return self._refresh() if has_notes or not is_fresh else None

    async def _refresh(self) -> None:
        await self._registry.refresh()
        share = self._world.share
        if share is not None and share.notes is not None:
            await share.notes.refresh()

    def specs(self, state: SessionState) -> list[ToolSpec]:
        """What the run offers. It is the same from the first call on: a tool that came later would break the
        provider's prompt cache."""
        started = state.started
        if started is None:
            return []
        offered = self._registry.offered(started.tool_policy, started.allowed_tools, started.tool_order)
        if (speaker := self._world.speaker) is not None and is_handed(speaker, state):
            # What the run allows and orders are tools of the agent that it was started with.
            offered = self._registry.offered(speaker.defaults.tool_policy)
        if speaker is not None and self._world.share is not None:
            shown = {widget.name for widget in self._world.share.folds.host.widgets}
            unseen = [widget for widget in speaker.parts.widgets if widget.name not in shown]
            names = {spec.name for widget in unseen for spec in widget.tools}
            offered = [spec for spec in offered if spec.name not in names]
        return offered if started.output_mode != "tool" else [*offered, final_tool(started)]

    async def judge(self, call: CallState, state: SessionState) -> Judgement:
        if is_final(call, state):
            return Answer(await self._output.answer(call, state))
        if self._recording is not None:
            recorded = self._recording.judge(call, self._world.session_id)
            if recorded is not None:
                return self._ask(call, recorded.reason) if isinstance(recorded, Ask) else recorded
        request = request_for(call)
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
            return Answer(self._with_warning(call, checked))
        assert state.started is not None
        change: Change | None = None
        if call.requested is None and call.started is None:
            found = await self._check(request)
            if isinstance(found, Veto):
                return Answer(ToolAnswer.denied(f"{tool.name} was not run: {found.by}: {found.reason}"))
            if isinstance(found, Question):
                return self._ask(call, found.reason)
            if (change := found) is not None:
                request = self._changed(request, change)
        if self._is_approved(call):
            assert call.request is not None
            await check_unchanged(self._world.store, self._world.session_id, call.request.seq)
        else:
            verdict = judge_call(self._approvals.policy, request, tool, state.started.tool_policy)
            if verdict.action == "deny":
                return Answer(ToolAnswer.denied(policy_denial_text(tool.name, verdict.reason)))
            if verdict.action == "ask":
                return self._ask(call, verdict.reason, change)
        return self._start(tool, call, change)

    def _changed(self, request: ToolCallRequest, change: Change) -> ToolCallRequest:
        """Raises ``HookFailed`` for arguments that do not fit the tool."""
        request = msgspec.structs.replace(request, arguments=change.arguments, parse_error=None)
        checked = self._executor.validate(request)
        if isinstance(checked, ToolAnswer):
            raise AgentError(
                "HookFailed",
                f"the check_tool hook {change.by!r} changed the arguments of {request.tool_name} to some "
                f"that do not fit it: {checked.text}",
            )
        return request

    def _start(self, tool: Tool, call: CallState, change: Change | None = None) -> Start:
        child = None
        if isinstance(tool.function, ChildBody):
            child = child_session(self._world.session_id, call.call.tool_call_id, tool.name)
        return Start(alone=not tool.concurrent, child=child, change=change)

    def _is_approved(self, call: CallState) -> bool:
        """Approved here, and for what would run. A fork takes the past along, but not what it allowed: that
        was to happen once."""
        requested, decided, asked_in = call.requested, call.decided, call.asked_in
        if requested is None or decided is None or call.decided_in != self._world.session_id:
            return False
        definition = self._definition(requested.tool_name)
        return is_approved(
            requested,
            decided,
            session_id=asked_in or "",
            definition=definition,
            sandbox=self._world.sandbox,
        )

    def _definition(self, tool_name: str) -> str | None:
        tool = self._registry.get(tool_name)
        return definition_hash(tool.spec, tool.annotations.get("origin")) if tool is not None else None

    def _ask(self, call: CallState, reason: str | None, change: Change | None = None) -> Ask:
        expires_at = self._approvals.expires_at(self._world.clock.now())
        definition = self._definition(call.call.tool_name)
        return Ask(reason, self._world.sandbox, expires_at, definition, change)

    def _refuse(self, request: ToolCallRequest, state: SessionState, *, first: bool) -> Answer | None:
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
        return self._refuse_handoff(request.tool_name, state)

    def _refuse_handoff(self, tool_name: str, state: SessionState) -> Answer | None:
        tool, started = self._registry.get(tool_name), state.started
        if started is None or tool is None or not isinstance(tool.function, HandoffBody):
            return None
        if state.handed_to is not None:
            text = f"the conversation is handed to {state.handed_to} already"
            return Answer(ToolAnswer.failed("ToolDenied", text))
        if state.handoffs >= started.limits.max_handoffs:
            text = (
                f"the conversation was handed over {state.handoffs} times in this run, and is not handed "
                "over again; answer with what you have"
            )
            return Answer(ToolAnswer.failed("ToolCallLimit", text))
        return None

    async def recover(self, call: CallState, state: SessionState) -> Judgement:
        """Never guess: run again only what is safe to run again, ask where there is somebody to ask."""
        request = request_for(call)
        tool = self._registry.get(request.tool_name)
        # What it started with may not fit what it is now: then it cannot be run again, and may have run.
        fits = not isinstance(self._executor.validate(request), ToolAnswer)
        if tool is not None and tool.rerunnable and fits:
            return self._start(tool, call)
        if tool is not None and tool.reconcile is not None and call.started is not None:
            ctx = self._context(call, call.started.idempotency_key, call.started.attempt)
            found = await self._executor.reconcile(tool, ctx, request.arguments or {})
            if found is not None:
                return Answer(found)
        if state.started is not None and state.started.tool_policy.outcome_unknown == "human":
            reason = (
                "it was running when the process stopped and may have taken effect; approve to run it again"
            )
            return self._ask(call, reason)
        return Answer(ToolAnswer.unknown(request.tool_name))

    def start(self, call: CallState, key: str, attempt: int) -> None:
        call_id = call.call.tool_call_id
        task = asyncio.create_task(self._run(call, key, attempt), name=f"turnlog tool {call_id}")
        self._tasks[call_id] = (call, task)
        task.add_done_callback(lambda task: self._tell(call, task))

    async def _run(self, call: CallState, key: str, attempt: int) -> ToolAnswer:
        inside.set((*inside.get(), self._world.session_id))
        conversation.set(self._world.secrets)
        if self._world.share is not None:
            SHARE.set(self._world.share)  # in the context of this task, and of what it starts
        try:
            answer = await self._executor.execute(request_for(call), self._context(call, key, attempt))
        except Exception as error:  # an executor that was handed in need not make every failure a value
            said = f"the tools cannot be run: {type(error).__name__}: {scrub(str(error))}"
            return ToolAnswer.failed("ToolExecutionError", f"{said}; the call may have taken effect")
        tool = self._registry.get(call.call.tool_name)
        if tool is not None and isinstance(tool.function, HandoffBody) and answer.status == "success":
            answer = replace(answer, handed_to=tool.function.to)
        # The tool ran, and the log must have that, even where its whole output cannot be kept.
        try:
            return await self._keep_artifact(answer)
        except AgentError as error:
            return self._cut(answer, error.message)
        except asyncio.CancelledError:
            return self._cut(answer, "the run was stopped")
        except Exception as error:
            return self._cut(answer, f"{type(error).__name__}: {scrub(str(error))}")

    def _tell(self, call: CallState, task: asyncio.Task[ToolAnswer]) -> None:
        """Report every end of the task: the runner waits for it."""
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
        preview = share.folds.context.preview(data.decode("utf-8", "replace"), handle)
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
        preview = share.folds.context.preview(answer.text, lost) if share else None
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
            answers=tuple(_given(asked, given) for asked, given in call.answers),
            agent=AgentInfo(world.agent_name),
            deps=world.deps,
            runtime=world.runtime,
            journal=SessionJournal(world.share, world.secrets) if world.share is not None else None,
            clock=world.clock,
            on_progress=progress,
        )

    async def next(self) -> ToolNews:
        news = await self._news.get()
        if isinstance(news, Finished):
            self._tasks.pop(news.call.call.tool_call_id, None)
            return Finished(news.call, self._with_warning(news.call, news.answer))
        return news

    def _with_warning(self, call: CallState, answer: ToolAnswer) -> ToolAnswer:
        """Tell the model when it makes a call again that failed with the same arguments before."""
        share = self._world.share
        if answer.status != "failed" or share is None:
            return answer
        state = share.folds.session.state
        often, limit = (
            state.failures_with(call),
            state.started.limits.warn_repeated_failures if state.started else 0,
        )
        if not limit or often < limit:
            return answer
        return answer.noted(
            f"[This call has now failed {often} times in a row with the same arguments. Do not repeat it: "
            "change the arguments, use another tool, or answer with what you have.]"
        )

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


def _given(asked: ToolDeferred, given: ToolAnswered) -> GivenAnswer:
    return GivenAnswer(
        state=thaw(asked.state) or {},
        content=thaw(given.content),
        declined=bool(given.declined),
        by=given.by,
    )


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


def _as_skipped(answer: ToolAnswer) -> ToolAnswer:
    return replace(answer, status="skipped") if answer.error_code == "ToolCancelled" else answer
