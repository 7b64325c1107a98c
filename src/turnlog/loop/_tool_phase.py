"""The calls of one answer: judged, started in order, answered as they finish."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Sequence

from turnlog.approvals import approval_digest
from turnlog.contract import (
    AgentError,
    ApprovalDecided,
    ApprovalDecidedEvent,
    ApprovalRequested,
    ApprovalRequestedEvent,
    ApprovalShown,
    DecisionShown,
    ErrorInfo,
    Message,
    RunEvent,
    ToolOutcome,
    ToolProgressEvent,
    ToolProgressShown,
    ToolResultEvent,
    ToolResults,
    ToolResultsEntry,
    ToolResultShown,
    ToolStarted,
    ToolStartedEvent,
    ToolStartedShown,
    encode,
    tool_result_part,
)
from turnlog.tools import ToolAnswer

from ._abort import RunInterrupted
from ._decide import AwaitHuman, RunTools
from ._doors import Answer, Ask, Doors, Finished, Judgement, Later, Progress, Restart, Start
from ._facts import take_facts
from ._recorder import Recorder
from ._state import CallState


async def run_tools(record: Recorder, doors: Doors, order: RunTools) -> AsyncGenerator[RunEvent, None]:
    """Run ``order.calls`` until each is answered or waits for a human."""
    record.go("tool_running")
    _check_aborted(order.calls)
    queue = _Queue(record, doors, order.calls)
    while True:
        if ready := await queue.stage_ready():
            for event in await record.flush():
                yield event
            for call in ready:
                assert call.started is not None
                doors.tools.start(call, call.started.idempotency_key, call.started.attempt)
        if not doors.tools.running and not queue.waiting:
            return
        # Only a recording lets a call wait for nothing: it then says that the run was stopped here.
        with doors.world.scope:
            news = await doors.tools.next()
        match news:
            case Progress():
                yield _progress_event(record, news)
            case Restart():
                queue.put_back(news.call)
            case Finished():
                queue.alone = False
                take_facts(record, doors)  # first, so that the screen with this result shows them
                _stage_result(record, doors, news.call, news.answer)
                await doors.world.hook("after_tool", news.call, news.answer)
                if doors.tools.running:
                    # Others still run: this result must not wait for them to be safe.
                    for event in await record.flush():
                        yield event


class _Queue:
    """Calls that have not begun, in their order, and what was judged of them."""

    def __init__(self, record: Recorder, doors: Doors, calls: Sequence[CallState]) -> None:
        assert record.state.started is not None
        self._record, self._doors = record, doors
        self._width = max(1, record.state.started.tool_policy.max_parallel)
        self._judged: dict[str, Judgement] = {}
        self.waiting = list(calls)
        self.alone = False
        """A tool runs that takes no other beside it."""

    async def stage_ready(self) -> list[CallState]:
        """Stage the start of every call that may run now, and the answers of those that never will."""
        ready: list[CallState] = []
        while self.waiting and not self.alone and await self._stage_next(ready):
            self.waiting.pop(0)
        return ready

    async def _stage_next(self, ready: list[CallState]) -> bool:
        """False when the first call has to wait, and those behind it with it."""
        call = self.waiting[0]
        judgement = await self._judge(call)
        match judgement:
            case Answer():
                _stage_result(self._record, self._doors, call, judgement.answer)
            case Ask():
                _stage_request(self._record, call, judgement)
            case Later():
                self._forget(call)
                return False
            case Start():
                busy = self._doors.tools.running + len(ready)
                if busy >= self._width or (busy and judgement.alone):
                    return False
                self.alone = judgement.alone
                await self._doors.world.hook("before_tool", call)
                _stage_start(self._record, call)
                ready.append(call)
        return True

    async def _judge(self, call: CallState) -> Judgement:
        judgement = self._judged.get(call.call.tool_call_id)
        if judgement is None:
            judgement = self._judged[call.call.tool_call_id] = await _judge(self._doors, self._record, call)
        return judgement

    def _forget(self, call: CallState) -> None:
        self._judged.pop(call.call.tool_call_id, None)

    def put_back(self, call: CallState) -> None:
        """It did not run after all: it is judged again, before the others."""
        self.waiting.insert(0, call)
        self._forget(call)
        self.alone = False


def _progress_event(record: Recorder, news: Progress) -> RunEvent:
    return record.event(
        ToolProgressEvent,
        ToolProgressShown(
            tool_call_id=news.call.call.tool_call_id,
            tool_name=news.call.call.tool_name,
            text=news.text,
            data=news.data,
        ),
    )


async def _judge(doors: Doors, record: Recorder, call: CallState) -> Judgement:
    # A call that has started is past its approval: what was allowed once must not run twice.
    if call.may_have_run:
        with doors.world.scope:
            return await doors.tools.recover(call, record.state)
    return await doors.tools.judge(call, record.state)


def _stage_start(record: Recorder, call: CallState) -> None:
    arguments = call.arguments
    again = call.started
    entry = record.stage(
        record.session.start_tool(
            ToolStarted(
                tool_call_id=call.call.tool_call_id,
                tool_name=call.call.tool_name,
                # The key outlives attempts: a tool that passes it on is not charged twice.
                idempotency_key=again.idempotency_key if again else idempotency_key(record, call),
                args_digest=args_digest(arguments),
                attempt=again.attempt + 1 if again else 1,
                arguments=arguments if arguments != call.call.arguments else None,
            )
        )
    )
    record.tell(
        ToolStartedEvent,
        ToolStartedShown(
            entry_id=entry.id,
            tool_call_id=call.call.tool_call_id,
            tool_name=call.call.tool_name,
            arguments=arguments,
        ),
    )


def args_digest(arguments: dict[str, object] | None) -> str:
    return hashlib.sha256(encode(arguments)).hexdigest()


def idempotency_key(record: Recorder, call: CallState) -> str:
    """The same for every attempt at one call, different for every other call anywhere."""
    place = f"{record.session_id}\n{call.call.tool_call_id}\n{call.call.tool_name}"
    return hashlib.sha256(place.encode()).hexdigest()[:32]


def _stage_result(record: Recorder, doors: Doors, call: CallState, answer: ToolAnswer) -> None:
    call_id = call.call.tool_call_id
    if answer.status == "deferred":
        answer = ToolAnswer.failed("ToolExecutionError", f"no answer came: {answer.text}")
    assert answer.status != "deferred"
    for event in answer.events:
        record.stage(record.session.append_widget_event(event))
    closes = len(record.state.open_calls) == 1
    sections = doors.context.result_sections(call, answer, closes=closes)
    message = Message(
        run_id="",
        role="tool",
        parts=[tool_result_part(call_id, answer.content, is_error=answer.is_error)],
        timestamp="",
    )
    outcome = ToolOutcome(
        tool_call_id=call_id,
        tool_name=call.call.tool_name,
        status=answer.status,
        elapsed_ms=answer.elapsed_ms,
        error_code=answer.error_code,
        sections=sections,
        authored=True if answer.summary is not None or answer.gist is not None else None,
        artifact=answer.kept_as,
    )
    entry = record.stage(record.session.append_tool_results(ToolResults(message=message, outcomes=[outcome])))
    assert isinstance(entry, ToolResultsEntry)
    record.tell(
        ToolResultEvent,
        ToolResultShown(
            entry_id=entry.id,
            tool_call_id=call_id,
            tool_name=call.call.tool_name,
            status=answer.status,
            message=entry.payload.message,
        ),
    )


def skip_open_calls(
    record: Recorder, doors: Doors, error: ErrorInfo, finished: Sequence[Finished] = ()
) -> None:
    """Answer every open call: with what it returned where it did, as skipped otherwise."""
    for done in finished:
        if not done.call.answered:
            _stage_result(record, doors, done.call, done.answer)
    for call in record.state.open_calls:
        text = "not run" if call.started is None else "stopped while it ran; it may have taken effect"
        _stage_result(record, doors, call, ToolAnswer.skipped(f"{text}: {error.message}"))


# ── humans ──


def _stage_request(record: Recorder, call: CallState, ask: Ask) -> None:
    arguments = call.arguments or {}
    request = ApprovalRequested(
        tool_call_id=call.call.tool_call_id,
        tool_name=call.call.tool_name,
        arguments=arguments,
        digest=approval_digest(
            record.session_id, call.call.tool_call_id, call.call.tool_name, arguments, ask.sandbox
        ),
        reason=ask.reason,
        expires_at=ask.expires_at,
        sandbox=ask.sandbox,
    )
    entry = record.stage(record.session.request_approval(request))
    record.tell(
        ApprovalRequestedEvent,
        ApprovalShown(
            entry_id=entry.id,
            tool_call_id=request.tool_call_id,
            tool_name=request.tool_name,
            arguments=arguments,
            digest=request.digest,
            reason=ask.reason,
        ),
    )


async def await_human(record: Recorder, doors: Doors, order: AwaitHuman) -> AsyncGenerator[RunEvent, None]:
    """Wait for decisions where somebody is there to give them. Returns undecided to let the run go."""
    record.go("awaiting_human")
    for event in await record.flush():
        yield event
    with doors.world.scope:
        decisions = await doors.human.decide(order.calls)
    for decided in decisions or ():
        stage_decision(record, decided)
    _check_aborted(record.state.open_calls)
    await _answer_denied(record, doors)
    if not record.state.awaiting and record.state.open_calls:
        record.go("tool_running")


def stage_decision(record: Recorder, decided: ApprovalDecided) -> None:
    entry = record.stage(record.session.decide_approval(decided))
    record.tell(
        ApprovalDecidedEvent,
        DecisionShown(
            entry_id=entry.id,
            tool_call_id=decided.tool_call_id,
            action=decided.action,
            decided_by=decided.decided_by,
        ),
    )


def aborted_by(calls: Sequence[CallState]) -> AgentError | None:
    """The end that a decision on one of ``calls`` puts to the run, whichever process recorded it."""
    for call in calls:
        if call.decided is not None and call.decided.action == "abort":
            return AgentError("RunAborted", f"{call.decided.decided_by} aborted the run")
    return None


def _check_aborted(calls: Sequence[CallState]) -> None:
    if (error := aborted_by(calls)) is not None:
        raise RunInterrupted(error)


async def _answer_denied(record: Recorder, doors: Doors) -> None:
    """A denied call is answered at once: with none left, the run goes straight back to the model."""
    for call in record.state.open_calls:
        if call.decided is not None and call.decided.action in ("deny", "expire"):
            judgement = await doors.tools.judge(call, record.state)
            if isinstance(judgement, Answer):
                _stage_result(record, doors, call, judgement.answer)
