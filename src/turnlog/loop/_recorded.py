"""The ports to a recording: everything from outside is read off the log, in the order it was written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from turnlog.context import ContextBuildResult, ContextInput
from turnlog.contract import (
    HINTS,
    OWN_SECTIONS,
    AgentError,
    ApprovalDecided,
    ApprovalDecidedEntry,
    ApprovalRequestedEntry,
    Entry,
    EntryPayload,
    ErrorInfo,
    Fold,
    FoldEntry,
    Grain,
    JsonObject,
    LevelOfDetailSections,
    MessageDelta,
    ModelCallFailedEntry,
    ModelCallStartedEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    RequestMetadata,
    RetryPolicy,
    SystemPromptEntry,
    TextChunk,
    TextDelta,
    ToolDeferred,
    ToolDeferredEntry,
    ToolOutcome,
    ToolResultPart,
    ToolResultsEntry,
    ToolsChangeEntry,
    ToolSpec,
    ToolStartedEntry,
    WidgetEvent,
    WidgetEventEntry,
    to_plain_text,
    try_get_section,
)
from turnlog.history import CallState, Session, SessionState, usage_of
from turnlog.tools import Deferral, ToolAnswer

from ._decide import ABANDONED, plan_retry
from ._folds import Folds
from ._live import LiveContext
from ._ports import (
    AbortScope,
    Answer,
    Ask,
    Batches,
    Change,
    Collector,
    Fact,
    Finished,
    HookPoint,
    Judgement,
    Later,
    ModelCall,
    Outcome,
    Restart,
    Said,
    Start,
    ToolNews,
)
from ._tape import Tape, TapeEnded

_FROM_OUTSIDE = ("RunAborted", "RunTimeout", "HookFailed")
"""Ends of a run that no decision of the loop explains."""


class RecordedClock:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def now(self) -> str:
        place = self._tape.position
        return self._tape.recorded[place].timestamp if place < len(self._tape.recorded) else ""

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        return None


class RecordedIds:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def entry(self) -> str:
        place = self._tape.position
        recorded = self._tape.recorded
        return recorded[place].id if place < len(recorded) else f"beyond-{place}"

    def run(self) -> str:
        return "run"

    def call(self) -> str:
        return "call"

    def session(self) -> str:
        return "session"


class RecordedModel:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def target(self, metadata: RequestMetadata) -> tuple[ModelInvocationDescriptor, str | None]:
        if self._tape.ending is not None:
            self._tape.stop()
        for entry in self._tape.after():
            if isinstance(entry, ModelCallStartedEntry):
                return entry.payload.target, entry.payload.reason
        raise TapeEnded

    def ask_window(self, target: ModelInvocationDescriptor) -> None:
        return None

    def told_window(self, target: ModelInvocationDescriptor) -> int | None:
        """What a server told is a fact like its answers."""
        calls = (entry for entry in self._tape.after() if isinstance(entry, ModelCallStartedEntry))
        return next((entry.payload.window for entry in calls), None)

    async def open(self, call: ModelCall) -> tuple[Batches, Collector]:
        entry = self._tape.peek()
        outcome = Outcome()
        shown = 0
        stopped = False
        if isinstance(entry, ModelOutputEntry):
            payload = entry.payload
            outcome = Outcome(
                message=payload.message,
                finish_reason=payload.finish_reason,
                usage=usage_of(payload.message),
                target=payload.invocation,
                reason=(entry.meta or {}).get("route"),
            )
        elif isinstance(entry, ModelCallFailedEntry):
            failed = entry.payload
            stopped = failed.error.code in _FROM_OUTSIDE
            shown = failed.shown if stopped else 0
            outcome = Outcome(
                error=failed.error, shown=failed.shown, partial=failed.partial, usage=failed.usage
            )
        return self._deltas(shown, stopped), RecordedCollector(outcome)

    async def _deltas(self, shown: int, stopped: bool) -> Batches:
        nothing = TextChunk(text_delta="")
        yield [TextDelta(run_id="", seq=seq + 1, payload=nothing, timestamp="") for seq in range(shown)]
        if stopped:
            self._tape.stop()

    def plan_retry(self, error: ErrorInfo, attempt: int, policy: RetryPolicy) -> int | None:
        entry = self._tape.peek()
        least, most = plan_retry(error, attempt, policy, 0.0), plan_retry(error, attempt, policy, 1.0)
        if not isinstance(entry, ModelCallFailedEntry):
            return least
        recorded = entry.payload.retry_in_ms
        if least is None or most is None:
            return 0 if recorded == 0 and error.message == ABANDONED else least
        return recorded if recorded is not None and least <= recorded <= most else least

    async def wait(self, milliseconds: int) -> None:
        return None


class RecordedCollector:
    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def consume(self, delta: MessageDelta) -> None:
        return None

    def snapshot(self) -> None:
        return None

    def partial(self) -> str | None:
        return self._outcome.partial

    def outcome(self, timestamp: str) -> Outcome:
        return self._outcome


class RecordedTools:
    def __init__(self, tape: Tape, session: Session) -> None:
        self._tape = tape
        self._session = session
        self._running: dict[str, CallState] = {}

    def refresh(self) -> None:
        """Takes in the instructions of the agent that the conversation was handed to."""
        due = self._session.state.handed_to is not None and not self._tape.ended
        if due and isinstance(self._tape.peek(), SystemPromptEntry):
            self._tape.copy()

    def specs(self, state: SessionState) -> Sequence[ToolSpec]:
        self._tape.peek()
        for entry in self._tape.after():
            if isinstance(entry, ToolsChangeEntry):
                return entry.payload.tools
            if not isinstance(entry, FoldEntry):  # a fold is written before the tools change
                break
        return state.tools or []

    async def judge(self, call: CallState, state: SessionState) -> Judgement:
        return self._judgement(call)

    async def recover(self, call: CallState, state: SessionState) -> Judgement:
        return self._judgement(call)

    def _judgement(self, call: CallState) -> Judgement:
        call_id = call.call.tool_call_id
        entry = self._tape.peek()
        if isinstance(entry, ToolStartedEntry) and entry.payload.tool_call_id == call_id:
            self._check_start(call)
            begun = entry.payload
            change = Change(begun.arguments or {}, begun.changed_by) if begun.changed_by else None
            return Start(alone=False, child=begun.child_session_id, change=change)
        if isinstance(entry, ApprovalRequestedEntry) and entry.payload.tool_call_id == call_id:
            asked = entry.payload
            change = Change(asked.arguments, asked.changed_by) if asked.changed_by else None
            return Ask(asked.reason, asked.sandbox, asked.expires_at, asked.definition, change)
        if found := self._result(call_id):
            return Answer(found)
        return Later()

    def _check_start(self, call: CallState) -> None:
        """Policies are not in the log, but what a human forbade is, and how many calls there may be."""
        state = self._session.state
        started = state.started
        limit = started.tool_policy.max_calls_per_run if started else None
        denied = call.decided is not None and call.decided.action in ("deny", "expire", "abort")
        if denied or (call.started is None and limit is not None and state.calls_started >= limit):
            self._tape.refuse("that the run may not make")

    def _result(self, call_id: str) -> ToolAnswer | None:
        """The next result on the tape, when it answers this call."""
        events: list[WidgetEvent] = []
        for entry in self._tape.after():
            if isinstance(entry, WidgetEventEntry):
                events.append(entry.payload)
                continue
            if isinstance(entry, ToolResultsEntry):
                for part, outcome in zip(
                    entry.payload.message.tool_results, entry.payload.outcomes, strict=False
                ):
                    if outcome.tool_call_id == call_id:
                        if outcome.status == "skipped":
                            self._tape.stop()
                        return _answer(part, outcome, events)
            return None
        return None

    def start(self, call: CallState, key: str, attempt: int) -> None:
        self._running[call.call.tool_call_id] = call

    async def next(self) -> ToolNews:
        entry = self._tape.peek()
        if isinstance(entry, ToolStartedEntry | ApprovalRequestedEntry):
            call = self._running.pop(entry.payload.tool_call_id, None)
            if call is not None:
                return Restart(call)
        if isinstance(entry, ToolDeferredEntry):
            call = self._running.pop(entry.payload.tool_call_id, None)
            if call is not None:
                return Finished(call, _deferral(entry.payload))
        for call_id, call in self._running.items():
            if answer := self._result(call_id):
                del self._running[call_id]
                return Finished(call, answer)
        self._tape.stop()

    @property
    def running(self) -> int:
        return len(self._running)

    async def stop(self) -> list[Finished]:
        finished: list[Finished] = []
        for entry in self._tape.after():
            if not isinstance(entry, ToolResultsEntry):
                break
            part, outcome = entry.payload.message.tool_results[0], entry.payload.outcomes[0]
            call = self._running.pop(outcome.tool_call_id, None)
            if call is None:
                break
            finished.append(Finished(call, _answer(part, outcome, [])))
        self._running.clear()
        return finished


def _deferral(deferred: ToolDeferred) -> ToolAnswer:
    given = Deferral(
        reason=deferred.reason,
        question=deferred.question,
        answer_schema=deferred.answer_schema,
        by=deferred.by,
        state=deferred.state,
    )
    return ToolAnswer(status="deferred", content="", deferral=given)


def _answer(part: ToolResultPart, outcome: ToolOutcome, events: list[WidgetEvent]) -> ToolAnswer:
    return ToolAnswer(
        status=outcome.status,
        content=part.payload.content,
        error_code=outcome.error_code,
        elapsed_ms=outcome.elapsed_ms,
        summary=_given(outcome, "summary"),
        gist=_given(outcome, "gist"),
        kept_as=outcome.artifact,
        usage=outcome.usage,
        traceback=outcome.traceback,
        ends_run=bool(outcome.ends_run),
        handed_to=outcome.handed_to,
        events=events,
    )


def _given(outcome: ToolOutcome, grain: Grain) -> str | None:
    if not outcome.authored or outcome.sections is None:
        return None
    return to_plain_text(outcome.sections.get_sections(grain))


class RecordedHuman:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    async def decide(self, calls: Sequence[CallState]) -> list[ApprovalDecided] | None:
        with suppress(TapeEnded):
            self._tape.peek()  # takes in what others appended while nobody had decided
        decided: list[ApprovalDecided] = []
        for entry in self._tape.after():
            if not isinstance(entry, ApprovalDecidedEntry):
                break
            decided.append(entry.payload)
        if not decided and not self._tape.ended:
            self._tape.stop()
        return decided or None

    def withdraw(self, tool_call_id: str) -> None:
        """Nobody is asked."""


class RecordedContext(LiveContext):
    """Grains and screens are made again; folds are read: the planner looks at clocks and prices. After a
    redaction grains are read too: they may have been extracted with the words in view that it hides."""

    def __init__(self, tape: Tape, folds: Folds) -> None:
        super().__init__(folds, RecordedClock(tape))
        self._tape = tape

    def input_sections(self, said: Said) -> LevelOfDetailSections | None:
        entry = None if self._tape.ended else self._tape.peek()
        if not isinstance(entry, ModelInputEntry):
            return super().input_sections(said)
        recorded = entry.payload.sections
        if recorded is not None and (entry.payload.authored or _has_titles(recorded)):
            return recorded  # what was given with the input is a fact like the input itself
        return self._with_grains(super().input_sections(said), recorded)

    def result_sections(
        self, call: CallState, answer: ToolAnswer, *, closes: bool
    ) -> LevelOfDetailSections | None:
        entry = None if self._tape.ended else self._tape.peek()
        recorded: LevelOfDetailSections | None = None
        authored = False
        if isinstance(entry, ToolResultsEntry):
            for outcome in entry.payload.outcomes:
                if outcome.tool_call_id == call.call.tool_call_id:
                    # What a tool's author wrote is a fact like the result itself.
                    recorded, authored = outcome.sections, bool(outcome.authored)
        made = super().result_sections(call, answer, closes=closes)
        return recorded if recorded is not None and authored else self._with_grains(made, recorded)

    def _with_grains(
        self, made: LevelOfDetailSections | None, recorded: LevelOfDetailSections | None
    ) -> LevelOfDetailSections | None:
        if made is None or recorded is None or not self._tape.past_changed:
            return made
        return LevelOfDetailSections(live=made.live, summary=recorded.summary, gist=recorded.gist)

    def _new_hints(self) -> JsonObject | None:
        """Hints come from outside: what the next entry shows of them is a fact."""
        shown = None if self._tape.ended else _hints_in(self._tape.peek())
        return None if shown is None else json.loads(shown)

    def build(
        self,
        state: SessionState,
        target: ModelInvocationDescriptor,
        specs: Sequence[ToolSpec],
        window: int | None = None,
    ) -> ContextBuildResult:
        return self._folds.context.build_context(
            ContextInput(
                target=target,
                tool_specs=specs,
                plan=False,
                fold=self._next_fold(),
                screen=self._folds.host.screen,
            )
        )

    def shrink(
        self, state: SessionState, step: int, target: ModelInvocationDescriptor
    ) -> Sequence[EntryPayload]:
        fold = self._next_fold()
        end = None if self._tape.ended else self._tape.ending
        if end is not None and end.error is not None:
            raise AgentError.from_info(end.error)  # the planner found nothing to shrink, and why
        return [] if fold is None else [msgspec.structs.replace(fold, screen=self._folds.host.screen())]

    def _next_fold(self) -> Fold | None:
        entry = None if self._tape.ended else self._tape.peek()
        return entry.payload if isinstance(entry, FoldEntry) else None


def _has_titles(sections: LevelOfDetailSections) -> bool:
    return any(title not in OWN_SECTIONS for title, _ in sections.live)


def _hints_in(entry: Entry) -> str | None:
    given: list[LevelOfDetailSections | None] = []
    if isinstance(entry, ModelInputEntry):
        given = [entry.payload.sections]
    elif isinstance(entry, ToolResultsEntry):
        given = [outcome.sections for outcome in entry.payload.outcomes]
    found = (try_get_section(sections.live, HINTS) for sections in given if sections is not None)
    return next((text for text in found if text is not None), None)


def said_in(entry: ModelInputEntry) -> Said:
    """A recorded input, with what makes the runner write it again as it was."""
    given = "" if entry.payload.authored else None
    return Said(entry.payload.message, (entry.meta or {}).get("control"), summary=given)


class RecordedWorld:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.scope = AbortScope()

    @property
    def paused(self) -> bool:
        return False

    def interrupted(self) -> None:
        end = self._tape.ending
        if end is not None and end.error is not None and end.error.code in _FROM_OUTSIDE:
            self._tape.stop()

    def take_steering(self) -> list[Said]:
        taken: list[Said] = []
        for entry in self._tape.after():
            if not isinstance(entry, ModelInputEntry) or entry.payload.source != "steering":
                break
            taken.append(said_in(entry))
        return taken

    def take_facts(self) -> list[Fact]:
        if not self._tape.ended:
            self._tape.peek()  # takes in those that come next
        return []

    def close(self) -> None:
        return None

    async def hook(self, point: HookPoint, *args: object) -> None:
        return None

    async def check_result(self, call: CallState, answer: ToolAnswer) -> ToolAnswer:
        return answer  # what hooks added is in it
