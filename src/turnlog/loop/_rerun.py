"""What if: run on from a past step with one thing changed, in a branch, and compare the two.

The branch begins before the model call of the step. What the recording answers (the same tool with the same
arguments) is taken from it; for other calls the user chose beforehand: end the run, ask, or run them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, Literal, TypedDict

import msgspec

from turnlog.context import Projection
from turnlog.contract import (
    AgentError,
    ApprovalDecided,
    ApprovalRequested,
    Entry,
    ErrorInfo,
    JsonObject,
    Message,
    MessageDelta,
    ModelCallStartedEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    RequestMetadata,
    Rerun,
    RetryPolicy,
    RunStartedEntry,
    TokenUsage,
    ToolOutcome,
    ToolResultPayload,
    ToolResultsEntry,
    ToolStartedEntry,
    Value,
    WidgetEvent,
    WidgetEventEntry,
    cost_of,
    digest,
    encode,
    to_plain_text,
)
from turnlog.history import CallState, Step, Timeline, timeline_of, visible_entries
from turnlog.models import Model
from turnlog.tools import ToolAnswer

from ._ports import Answer, Ask, Batches, Collector, Judgement, ModelCall, ModelPort, Outcome

_NOT_RECORDED = "the recording has no result of this call with these arguments"


class RerunOptions(TypedDict, total=False):
    """What a rerun changes: see :meth:`Session.rerun`. ``session`` names the branch."""

    model: Model | str | None
    instructions: str | None
    text: str | None
    result: str | None
    arguments: JsonObject | None
    tools: Literal["recorded", "ask", "live"]
    session: str | None
    deps: Any


def describe_change(source: str, at: int, change: RerunOptions, model: Model | None) -> Rerun:
    """What the log keeps of a change. Raises ``ConfigInvalid`` for an option that is not known."""
    if unknown := sorted(set(change) - set(RerunOptions.__annotations__)):
        raise AgentError("ConfigInvalid", f"rerun has no option {unknown[0]!r}")
    tools = change.get("tools", "recorded")
    if tools not in ("recorded", "ask", "live"):
        raise AgentError("ConfigInvalid", f"tools is {tools!r}; pass 'recorded', 'ask' or 'live'")
    target = model.descriptor if model is not None else None
    return Rerun(
        source=source,
        at=at,
        tools=tools,
        model=f"{target.provider_id}:{target.model}" if target is not None else None,
        instructions=change.get("instructions"),
        text=change.get("text"),
        result=change.get("result"),
        arguments=change.get("arguments"),
    )


@dataclass(frozen=True)
class Plan:
    """Where a branch begins, and how its run starts: with words of the user, or with a recorded answer."""

    fork_at: int
    started: RunStartedEntry
    recorded_after: int
    answer: ModelOutputEntry | None = None
    call_id: str | None = None


def plan_rerun(entries: Sequence[Entry], at: int, change: Rerun) -> Plan:
    """Raises ``ConfigInvalid`` when nothing can be run on from there with this change."""
    if not 1 <= at <= len(entries):
        raise AgentError("ConfigInvalid", f"at is {at}; the session has the entries 1 to {len(entries)}")
    if sum(each is not None for each in (change.text, change.result, change.arguments)) > 1:
        raise AgentError("ConfigInvalid", "text, result and arguments exclude each other; change one of them")
    begun = [entry for entry in entries[:at] if isinstance(entry, RunStartedEntry)]
    if change.text is not None:
        asked = entries[at - 1]
        if not isinstance(asked, ModelInputEntry) or asked.payload.source != "user" or not begun:
            raise AgentError("ConfigInvalid", f"entry {at} is not what a run was asked; name such an entry")
        return Plan(begun[-1].seq - 1, begun[-1], begun[-1].seq)
    call = _call_at(entries, at)
    if change.result is not None or change.arguments is not None:
        call_id = _tool_call_at(entries, at)
        made = [e for e in entries if isinstance(e, ModelOutputEntry) and _calls(e, call_id)]
        if call_id is None or not made:
            raise AgentError("ConfigInvalid", f"entry {at} belongs to no tool call; name an entry of one")
        answer = made[-1]
        call = _call_at(entries, answer.seq)
        assert call is not None
        run = [entry for entry in entries[: call.seq] if isinstance(entry, RunStartedEntry)][-1]
        return Plan(call.seq - 1, run, answer.seq, answer, call_id)
    if call is None:
        raise AgentError(
            "ConfigInvalid", f"no model call follows entry {at}: there is nothing to run on from"
        )
    run = [entry for entry in entries[: call.seq] if isinstance(entry, RunStartedEntry)][-1]
    return Plan(call.seq - 1, run, call.seq)


def _call_at(entries: Sequence[Entry], at: int) -> ModelCallStartedEntry | None:
    """The first attempt of the model call that entry ``at`` belongs to, or of the next one."""
    entry = entries[at - 1]
    if entry.kind in ("model_call_started", "model_call_failed", "model_output"):
        started = [each for each in entries[:at] if isinstance(each, ModelCallStartedEntry)]
        firsts = [each for each in started if each.payload.attempt == 1]
        return firsts[-1] if firsts else None
    later = (each for each in entries[at:] if isinstance(each, ModelCallStartedEntry))
    return next(later, None)


def _tool_call_at(entries: Sequence[Entry], at: int) -> str | None:
    payload: Any = entries[at - 1].payload
    if isinstance(entries[at - 1], ToolResultsEntry):
        return payload.outcomes[0].tool_call_id
    if isinstance(entries[at - 1], ModelOutputEntry):
        calls = payload.message.tool_calls
        return calls[0].payload.tool_call_id if len(calls) == 1 else None
    return getattr(payload, "tool_call_id", None)


def _calls(entry: ModelOutputEntry, call_id: str | None) -> bool:
    return any(part.payload.tool_call_id == call_id for part in entry.payload.message.tool_calls)


class RecordedCall(Value, frozen=True, kw_only=True):
    """A call whose result the recording has, in entry ``seq``."""

    seq: int
    tool_call_id: str
    tool_name: str
    arguments: JsonObject


class Recording:
    """The results of a log after an entry, each given once, to calls of the same tool with the same
    arguments."""

    def __init__(self, entries: Sequence[Entry], plan: Plan, change: Rerun) -> None:
        self.tools = change.tools
        self.calls: list[RecordedCall] = []
        self._given = {plan.call_id: change.result} if plan.call_id and change.result is not None else {}
        self._answers: dict[str, deque[ToolAnswer]] = {}
        arguments: dict[str, JsonObject | None] = {}
        events: dict[str, list[WidgetEvent]] = {}
        for entry in entries:
            match entry:
                case ModelOutputEntry():
                    for part in entry.payload.message.tool_calls:
                        arguments[part.payload.tool_call_id] = part.payload.arguments
                case ToolStartedEntry() if entry.payload.arguments is not None:
                    arguments[entry.payload.tool_call_id] = entry.payload.arguments
                case WidgetEventEntry() if entry.payload.tool_call_id is not None:
                    events.setdefault(entry.payload.tool_call_id, []).append(entry.payload)
                case ToolResultsEntry() if entry.seq > plan.recorded_after:
                    results = {
                        part.payload.tool_call_id: part.payload for part in entry.payload.message.tool_results
                    }
                    for outcome in entry.payload.outcomes:
                        call_id = outcome.tool_call_id
                        given, result = arguments.get(call_id), results.get(call_id)
                        if outcome.status not in ("success", "failed"):
                            continue
                        if given is not None and result is not None:
                            key = _key(outcome.tool_name, given)
                            answer = _answer(outcome, result, events.get(call_id, []))
                            self._answers.setdefault(key, deque()).append(answer)
                            known = RecordedCall(
                                seq=entry.seq,
                                tool_call_id=call_id,
                                tool_name=outcome.tool_name,
                                arguments=given,
                            )
                            self.calls.append(known)
                case _:
                    pass

    def skip(self, entries: Sequence[Entry], first: int) -> None:
        """Leave out what a run that began at entry ``first`` was given already."""
        arguments: dict[str, JsonObject | None] = {}
        for entry in entries[first:]:
            if isinstance(entry, ModelOutputEntry):
                for part in entry.payload.message.tool_calls:
                    arguments[part.payload.tool_call_id] = part.payload.arguments
            elif isinstance(entry, ToolResultsEntry):
                for outcome in entry.payload.outcomes:
                    given = arguments.get(outcome.tool_call_id)
                    kept = self._answers.get(_key(outcome.tool_name, given)) if given is not None else None
                    if kept:
                        kept.popleft()

    def has(self, tool_name: str, arguments: JsonObject) -> bool:
        return bool(self._answers.get(_key(tool_name, arguments)))

    def judge(self, call: CallState, session_id: str) -> Judgement | None:
        """What the recording says to a call; None: the run decides as always."""
        if call.decided is not None and call.decided_in == session_id:
            return None
        given = self._given.get(call.call.tool_call_id)
        if given is not None:
            return Answer(ToolAnswer(status="success", content=given))
        if call.arguments is None:
            return None  # it cannot be read, so the run answers it and nothing is executed
        kept = self._answers.get(_key(call.call.tool_name, call.arguments))
        if kept:
            return Answer(kept.popleft())
        return None if self.tools == "live" else Ask(_NOT_RECORDED)

    def refuse(self, requested: ApprovalRequested) -> ApprovalDecided:
        """Ends the run at a call that is not recorded."""
        return ApprovalDecided(
            tool_call_id=requested.tool_call_id,
            digest=requested.digest,
            action="abort",
            decided_by="the recording, which has no result of this call,",
            note="rerun with tools 'ask' or 'live' to go past it",
        )


def _key(tool_name: str, arguments: JsonObject) -> str:
    return digest(msgspec.json.encode([tool_name, arguments], order="sorted"))


def _answer(outcome: ToolOutcome, result: ToolResultPayload, events: list[WidgetEvent]) -> ToolAnswer:
    sections = outcome.sections if outcome.authored else None
    return ToolAnswer(
        status="success" if outcome.status == "success" else "failed",
        content=result.content,
        error_code=outcome.error_code,
        elapsed_ms=outcome.elapsed_ms,
        summary=to_plain_text(sections.summary) if sections is not None else None,
        gist=to_plain_text(sections.gist) if sections is not None else None,
        kept_as=outcome.artifact,
        events=events,
        ends_run=bool(outcome.ends_run),
    )


class FirstAnswer:
    """A model whose first answer is a recorded one, perhaps with other arguments for a call."""

    def __init__(self, model: ModelPort, plan: Plan, arguments: JsonObject | None, run_id: str) -> None:
        assert plan.answer is not None
        self._model = model
        self._recorded: ModelOutputEntry | None = plan.answer
        self._message = _changed(plan.answer.payload.message, plan.call_id, arguments, run_id)

    def target(self, metadata: RequestMetadata) -> tuple[ModelInvocationDescriptor, str | None]:
        if self._recorded is not None:
            return self._recorded.payload.invocation, "the recorded answer"
        return self._model.target(metadata)

    def ask_window(self, target: ModelInvocationDescriptor) -> Awaitable[None] | None:
        return None if self._recorded is not None else self._model.ask_window(target)

    def told_window(self, target: ModelInvocationDescriptor) -> int | None:
        return self._model.told_window(target)

    async def open(self, call: ModelCall) -> tuple[Batches, Collector]:
        if self._recorded is None:
            return await self._model.open(call)
        payload, self._recorded = self._recorded.payload, None
        outcome = Outcome(
            message=self._message, finish_reason=payload.finish_reason, target=payload.invocation
        )
        return _nothing(), Recalled(outcome)

    def plan_retry(self, error: ErrorInfo, attempt: int, policy: RetryPolicy) -> int | None:
        return self._model.plan_retry(error, attempt, policy)

    async def wait(self, milliseconds: int) -> None:
        await self._model.wait(milliseconds)


class Recalled:
    """Collects nothing: the outcome is known."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def consume(self, delta: MessageDelta) -> None:
        return None

    def snapshot(self) -> None:
        return None

    def partial(self) -> str | None:
        return None

    def outcome(self, timestamp: str) -> Outcome:
        return self._outcome


async def _nothing() -> Batches:
    for delta in ():
        yield delta


def _changed(message: Message, call_id: str | None, arguments: JsonObject | None, run_id: str) -> Message:
    parts = list(message.parts)
    if arguments is not None:
        for at, part in enumerate(parts):
            if part.kind == "tool_call" and part.payload.tool_call_id == call_id:
                call = msgspec.structs.replace(part.payload, arguments=arguments, raw_args_text=None)
                parts[at] = msgspec.structs.replace(part, payload=call)
    meta = {key: value for key, value in (message.meta or {}).items() if key != "usage"}  # it cost nothing
    return msgspec.structs.replace(message, parts=parts, run_id=run_id, meta=meta or None)


# ── beforehand ──


class RerunPreview(Value, frozen=True, kw_only=True):
    """What a rerun will do, as far as it is known before a model has answered.

    The branch shares ``shared`` entries with its source, and model call ``call`` is the first that is made
    again, by ``model``: with about ``input_tokens`` tokens, for about ``cost`` US dollars if it answers as
    much as it did then (None: no price is known). ``recorded`` are the calls that the recording can answer
    from there on; ``tools`` says what becomes of others. ``unrecorded`` names the changed call where the
    recording has no result for it, ``missing`` the tools of the recording that this agent does not have.
    """

    shared: int
    call: int
    model: str
    input_tokens: int
    cost: float | None
    tools: Literal["recorded", "ask", "live"]
    recorded: list[RecordedCall]
    unrecorded: str | None
    missing: list[str]

    @property
    def text(self) -> str:
        cost = f", about ${self.cost:.4f}" if self.cost is not None else ""
        names = Counter(call.tool_name for call in self.recorded)
        known = ", ".join(f"{name} ({count} times)" if count > 1 else name for name, count in names.items())
        lines = [
            f"shares {self.shared} entries, and runs again from model call {self.call}",
            f"first call: about {self.input_tokens:,} tokens to {self.model}{cost}",
            f"the recording answers: {known or 'no call'}; any other call {_OTHERS[self.tools]}",
        ]
        if self.unrecorded is not None:
            lines.append(f"{self.unrecorded} was not recorded with these arguments: it {_OTHERS[self.tools]}")
        if self.missing:
            lines.append(f"this agent has no tool {', '.join(self.missing)}: the model is not offered it")
        return "\n".join(lines)


_OTHERS = {"recorded": "ends the run", "ask": "waits for you", "live": "runs, with its effects"}


def preview_rerun(
    entries: Sequence[Entry],
    plan: Plan,
    change: Rerun,
    target: ModelInvocationDescriptor,
    tools: Collection[str],
) -> RerunPreview:
    """``entries`` are the visible ones, ``tools`` the names of those that the agent has."""
    recording = Recording(entries, plan, change)
    calls = [call for call in recording.calls if call.tool_call_id != plan.call_id]
    changed = _tool_of(plan)
    unrecorded = None
    if changed is not None and change.arguments is not None and not recording.has(changed, change.arguments):
        unrecorded = changed
    started = _next_call(entries, plan)
    upto = started.seq - 1 if started is not None else len(entries)
    projection = Projection.of(entries[:upto])
    weight = projection.lane(target).weight + _grown(entries, plan, change, projection)
    tokens = projection.meter.tokens(max(0, weight), target)
    given = next((e for e in entries[upto:] if isinstance(e, ModelOutputEntry)), None)
    usage = TokenUsage.read((given.payload.message.meta or {}).get("usage") or {}) if given else None
    output = usage.output_tokens if usage is not None else 0
    wanted = {call.tool_name for call in calls} | ({unrecorded} if unrecorded is not None else set[str]())
    return RerunPreview(
        shared=plan.fork_at,
        call=sum(isinstance(entry, ModelCallStartedEntry) for entry in entries[:upto]) + 1,
        model=f"{target.provider_id}:{target.model}",
        input_tokens=tokens,
        cost=cost_of(
            target, TokenUsage(input_tokens=tokens, output_tokens=output, total_tokens=tokens + output)
        ),
        tools=change.tools,
        recorded=calls,
        unrecorded=unrecorded,
        missing=sorted(wanted - set(tools)),
    )


def check_tool(recording: Recording, plan: Plan, change: Rerun, tools: Collection[str]) -> None:
    """Raises ``ConfigInvalid`` when a call with other arguments would have to run, and its tool is gone."""
    name = _tool_of(plan)
    if name is None or change.arguments is None or change.tools == "recorded" or name in tools:
        return
    if not recording.has(name, change.arguments):
        raise AgentError(
            "ConfigInvalid",
            f"the call at entry {change.at} is of {name!r}, a tool that this agent does not have; its tools: "
            f"{', '.join(tools) or 'none'}. Give the result instead (result=…, --result), or rerun with an "
            "agent that has the tool",
        )


def _tool_of(plan: Plan) -> str | None:
    """The tool of the call that is changed."""
    calls = plan.answer.payload.message.tool_calls if plan.answer is not None else []
    return next((p.payload.tool_name for p in calls if p.payload.tool_call_id == plan.call_id), None)


def _next_call(entries: Sequence[Entry], plan: Plan) -> ModelCallStartedEntry | None:
    """The recorded call in whose place the first one of the branch is made."""
    after = plan.answer.seq if plan.answer is not None else plan.fork_at
    return next((e for e in entries[after:] if isinstance(e, ModelCallStartedEntry)), None)


def _grown(entries: Sequence[Entry], plan: Plan, change: Rerun, projection: Projection) -> int:
    """By how many bytes the change makes the context larger than it was recorded."""
    grown = 0
    if change.instructions is not None:
        grown += len(change.instructions.encode()) - len((projection.head.system_prompt or "").encode())
    entry = entries[change.at - 1]
    if change.text is not None and isinstance(entry, ModelInputEntry):
        grown += len(change.text.encode()) - len(entry.payload.message.text.encode())
    if change.result is not None:
        results = [
            part.payload
            for each in entries
            if isinstance(each, ToolResultsEntry)
            for part in each.payload.message.tool_results
            if part.payload.tool_call_id == plan.call_id
        ]
        grown += len(change.result.encode()) - sum(len(encode(result.content)) for result in results[-1:])
    return grown


# ── side by side ──


class Comparison(Value, frozen=True, kw_only=True):
    """Two sessions that share their first ``shared`` entries, and the steps of each after that."""

    a: str
    b: str
    shared: int
    steps_a: list[Step]
    steps_b: list[Step]
    timeline_a: Timeline
    timeline_b: Timeline

    @property
    def text(self) -> str:
        """Both in columns: what came of each, and where they differ (marked ``≠``)."""
        lines = [f"{self.a} | {self.b}, which share {self.shared} entries"]
        for name, left, right in _facts(self.timeline_a, self.timeline_b):
            lines.append(f"{'≠' if left != right else ' '} {name:<12} {left:<24} | {right}")
        for left, right in _pairs(self.steps_a, self.steps_b):
            same = left is not None and right is not None and _words(left) == _words(right)
            one, other = (f"{step.seq} {_words(step)}" if step is not None else "" for step in (left, right))
            lines.append(f"{' ' if same else '≠'} {one:<60.60} | {other}")
        return "\n".join(lines)


def compare_logs(a: str, left: Sequence[Entry], b: str, right: Sequence[Entry]) -> Comparison:
    shared = 0
    for one, other in zip(left, right, strict=False):
        if one.id != other.id:
            break
        shared += 1
    lines = [timeline_of(visible_entries(entries)) for entries in (left, right)]
    steps = [[step for step in line.steps if step.end > shared and _tells(step)] for line in lines]
    heads = [msgspec.structs.replace(line, steps=[]) for line in lines]
    return Comparison(
        a=a,
        b=b,
        shared=shared,
        steps_a=steps[0],
        steps_b=steps[1],
        timeline_a=heads[0],
        timeline_b=heads[1],
    )


def _tells(step: Step) -> bool:
    """Whether a step belongs to the story, and not to how a branch is made."""
    if step.kind == "run_ended":
        return step.status != "stopped" or step.error is not None
    return step.kind in ("input", "model", "tool", "fold", "prompt", "model_change")


def _facts(a: Timeline, b: Timeline) -> list[tuple[str, str, str]]:
    def tell(line: Timeline) -> list[str]:
        usage, last = line.usage, line.runs[-1] if line.runs else None
        cost = usage.cost if usage is not None else None
        return [
            last.status if last is not None else "",
            last.model or "" if last is not None else "",
            str(sum(run.calls for run in line.runs)),
            str(usage.input_tokens if usage is not None else 0),
            str(usage.output_tokens if usage is not None else 0),
            f"${cost:.4f}" if cost is not None else "unknown",
        ]

    names = ("outcome", "model", "model calls", "input", "output", "cost")
    return list(zip(names, tell(a), tell(b), strict=True))


def _pairs(a: Sequence[Step], b: Sequence[Step]) -> Iterator[tuple[Step | None, Step | None]]:
    """Steps that say the same beside each other, the others in between."""
    matcher = SequenceMatcher(None, [_words(s) for s in a], [_words(s) for s in b], autojunk=False)
    for _, a1, a2, b1, b2 in matcher.get_opcodes():
        yield from zip_longest(a[a1:a2], b[b1:b2])


def _words(step: Step) -> str:
    name = step.tool or step.kind
    failed = f" ({step.status})" if step.status not in ("done", "running") else ""
    return f"{name}{failed} {step.error or step.title}".rstrip()
