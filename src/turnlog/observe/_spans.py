"""A log as spans: what a trace viewer shows of a session, made of its entries and nothing else.

Ids follow from the log: the same session makes the same spans in every process, live or years later, and the
span of a model call is the one that the provider was told of in ``traceparent``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal, TypeAlias

import msgspec

from turnlog.contract import (
    ApprovalDecidedEntry,
    ApprovalRequestedEntry,
    CompactionSummaryEntry,
    Entry,
    ErrorInfo,
    FoldEntry,
    Message,
    ModelCallFailedEntry,
    ModelCallStartedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    RunEndedEntry,
    RunStartedEntry,
    SessionHeaderEntry,
    TextPart,
    ThinkingPart,
    TokenUsage,
    ToolCallPart,
    ToolDeferredEntry,
    ToolResultPart,
    ToolResultsEntry,
    ToolStartedEntry,
    encode,
)

Attribute: TypeAlias = str | int | float | bool | Sequence[str]
_TRACE = re.compile(r"[0-9a-f]{32}")
_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_PROVIDERS = {"google": "gcp.gemini", "bedrock": "aws.bedrock"}
"""Where the GenAI conventions name a provider otherwise."""


@dataclass(slots=True)
class SpanEvent:
    """Something that happened at a moment of a span."""

    name: str
    time: int
    attributes: dict[str, Attribute] = field(default_factory=dict[str, Attribute])


@dataclass(slots=True)
class Span:
    """A span of the GenAI conventions: ``invoke_agent``, ``chat`` or ``execute_tool``. Times are nanoseconds
    since 1970, ids hexadecimal. ``links`` are spans of other traces, as trace and span id."""

    kind: Literal["invoke_agent", "chat", "execute_tool"]
    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start: int
    end: int = 0
    attributes: dict[str, Attribute] = field(default_factory=dict[str, Attribute])
    events: list[SpanEvent] = field(default_factory=list[SpanEvent])
    links: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    error: str | None = None


class SpanReader:
    """Reads one session's entries in their order; ``step`` gives the spans that an entry completes.

    ``under`` is the tool call of the parent session, for the session of a sub-agent. ``content`` adds what
    was said.
    """

    def __init__(self, *, content: bool = False, under: Span | None = None) -> None:
        self._content = content
        self._under = (under.trace_id, under.span_id) if under is not None else None
        self._run: Span | None = None
        self._before: tuple[str, str] | None = None
        self._calls: dict[int, Span] = {}
        self._target: dict[str, Attribute] = {}
        self._said: list[Message] = []
        self.tools: dict[str, Span] = {}
        """The tool calls in progress, by their ids: the parents of the sessions that they begin."""

    @property
    def newest_tool(self) -> Span | None:
        return next(reversed(self.tools.values()), None)

    def step(self, entry: Entry) -> Iterator[Span]:
        match entry:
            case SessionHeaderEntry():
                place = entry.payload
                if place.parent_session_id and place.parent_tool_call_id and self._under is None:
                    # The parent's trace is not known here; its tool call's span is.
                    tool = tool_span_id(place.parent_session_id, place.parent_tool_call_id)
                    self._under = (_hash(place.parent_session_id, place.parent_tool_call_id, size=32), tool)
            case RunStartedEntry():
                yield from self._leave(entry)
                self._begin(entry, entry.payload.agent_name, entry.payload.trace_id)
            case ModelInputEntry():
                self._said.append(entry.payload.message)
            case ModelCallStartedEntry():
                self._call(entry)
            case ModelOutputEntry():
                yield from self._answered(entry)
            case ModelCallFailedEntry():
                yield from self._failed(entry)
            case ToolStartedEntry():
                self._tool(entry)
            case ToolResultsEntry():
                self._said.append(entry.payload.message)
                yield from self._results(entry)
            case ApprovalRequestedEntry() | ApprovalDecidedEntry() | ToolDeferredEntry():
                self._note(entry, {"gen_ai.tool.call.id": entry.payload.tool_call_id})
                if isinstance(entry, ApprovalDecidedEntry):
                    self._note_last("turnlog.approval.action", entry.payload.action)
            case FoldEntry():
                self._note(
                    entry,
                    {
                        "turnlog.fold.reason": entry.payload.reason,
                        "turnlog.fold.tokens_before": entry.payload.tokens_before,
                        "turnlog.fold.tokens_after": entry.payload.tokens_after,
                    },
                )
            case CompactionSummaryEntry():
                self._note(entry, {})
            case RunEndedEntry():
                yield from self._ended(entry)
            case _:
                pass

    # ── runs ──

    def _begin(self, entry: Entry, agent: str | None, trace: str | None = None) -> Span:
        run_id = entry.run_id or ""
        trace_id, parent = _hash(entry.session_id, run_id, size=32), None
        given = (trace or "").lower()
        if found := _PARENT.fullmatch(given):
            trace_id, parent = found[1], found[2]
        elif _TRACE.fullmatch(given) and given.strip("0"):
            trace_id = given
        elif self._under is not None:
            trace_id, parent = self._under
        self._run = Span(
            kind="invoke_agent",
            name=f"invoke_agent {agent}" if agent else "invoke_agent",
            trace_id=trace_id,
            span_id=_hash("run", entry.session_id, run_id),
            parent_id=parent,
            start=_time(entry),
            attributes={
                "gen_ai.operation.name": "invoke_agent",
                **({"gen_ai.agent.name": agent} if agent else {}),
                "gen_ai.conversation.id": entry.session_id,
                "turnlog.run.id": run_id,
                **_place(entry),
            },
            links=[self._before] if self._before is not None else [],
        )
        return self._run

    def _open(self, entry: Entry) -> Span:
        """The run of an entry; of a run that began before the first entry seen, what is known."""
        if self._run is None:
            self._begin(entry, None).attributes["turnlog.run.resumed"] = True
            assert self._run is not None
        return self._run

    def _ended(self, entry: RunEndedEntry) -> Iterator[Span]:
        run, ended = self._open(entry), entry.payload
        run.attributes |= self._target
        run.attributes |= {"turnlog.run.status": ended.status, "turnlog.entry.last": entry.id}
        run.attributes |= _usage(ended.usage)
        if ended.error is not None:
            _fail(run, ended.error)
        yield from self._leave(entry)

    def _leave(self, entry: Entry) -> Iterator[Span]:
        """Close what is open: the run, and what it left unfinished."""
        run, self._run = self._run, None
        if run is None:
            return
        for span in (*self._calls.values(), *self.tools.values()):
            span.error = span.error or "abandoned"
            yield _close(span, entry)
        self._calls.clear()
        self.tools.clear()
        self._said.clear()
        self._before = (run.trace_id, run.span_id)
        yield _close(run, entry)

    def _note(self, entry: Entry, attributes: dict[str, Attribute]) -> None:
        if self._run is not None:
            self._run.events.append(SpanEvent(entry.kind, _time(entry), {**attributes, **_place(entry)}))

    def _note_last(self, name: str, value: Attribute) -> None:
        if self._run is not None:
            self._run.events[-1].attributes[name] = value

    # ── model calls ──

    def _call(self, entry: ModelCallStartedEntry) -> None:
        run, call = self._open(entry), entry.payload
        provider = call.target.provider_id
        self._target = {
            "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
            "gen_ai.request.model": call.target.model,
        }
        self._calls[call.model_call_index] = Span(
            kind="chat",
            name=f"chat {call.target.model}",
            trace_id=run.trace_id,
            span_id=call_span_id(entry.run_id, call.model_call_index, call.attempt),
            parent_id=run.span_id,
            start=_time(entry),
            attributes={
                "gen_ai.operation.name": "chat",
                **self._target,
                "gen_ai.conversation.id": entry.session_id,
                "turnlog.call.index": call.model_call_index,
                "turnlog.call.attempt": call.attempt,
                "turnlog.context.hash": call.context_hash,
                **_place(entry),
            },
        )

    def _answered(self, entry: ModelOutputEntry) -> Iterator[Span]:
        output = entry.payload
        span = self._calls.pop(output.model_call_index, None)
        if span is None:
            return
        span.attributes["gen_ai.response.model"] = output.invocation.model
        span.attributes["gen_ai.response.finish_reasons"] = [output.finish_reason]
        span.attributes |= _usage(TokenUsage.read((output.message.meta or {}).get("usage")))
        if self._content:
            span.attributes["gen_ai.input.messages"] = _tell(self._said)
            span.attributes["gen_ai.output.messages"] = _tell([output.message])
        self._said.clear()
        yield _close(span, entry)

    def _failed(self, entry: ModelCallFailedEntry) -> Iterator[Span]:
        span = self._calls.pop(entry.payload.model_call_index, None)
        if span is None:
            return
        span.attributes |= _usage(entry.payload.usage)
        if entry.payload.retry_in_ms is not None:
            span.attributes["turnlog.call.retry_in_ms"] = entry.payload.retry_in_ms
        _fail(span, entry.payload.error)
        yield _close(span, entry)

    # ── tools ──

    def _tool(self, entry: ToolStartedEntry) -> None:
        run, call = self._open(entry), entry.payload
        self.tools[call.tool_call_id] = Span(
            kind="execute_tool",
            name=f"execute_tool {call.tool_name}",
            trace_id=run.trace_id,
            span_id=tool_span_id(entry.session_id, call.tool_call_id),
            parent_id=run.span_id,
            start=_time(entry),
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call.tool_name,
                "gen_ai.tool.call.id": call.tool_call_id,
                "gen_ai.conversation.id": entry.session_id,
                **({"turnlog.child.session": call.child_session_id} if call.child_session_id else {}),
                **_place(entry),
            },
        )

    def _results(self, entry: ToolResultsEntry) -> Iterator[Span]:
        results = {part.payload.tool_call_id: part.payload for part in entry.payload.message.tool_results}
        for outcome in entry.payload.outcomes:
            span = self.tools.pop(outcome.tool_call_id, None)
            if span is None:  # it was refused, and never ran
                self._note(
                    entry, {"gen_ai.tool.name": outcome.tool_name, "turnlog.tool.status": outcome.status}
                )
                continue
            span.attributes["turnlog.tool.status"] = outcome.status
            if outcome.status != "success":
                span.attributes["error.type"] = outcome.error_code or outcome.status
                span.error = outcome.error_code or outcome.status
            if self._content and (result := results.get(outcome.tool_call_id)) is not None:
                span.attributes["gen_ai.tool.call.result"] = result.text
            yield _close(span, entry)


def call_span_id(run_id: str | None, index: int, attempt: int) -> str:
    return sha256(f"{run_id}:{index}:{attempt}".encode()).hexdigest()[:16]


def tool_span_id(session_id: str, tool_call_id: str) -> str:
    return _hash("tool", session_id, tool_call_id)


def _hash(*parts: str, size: int = 16) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:size]


def _time(entry: Entry) -> int:
    moment = datetime.fromisoformat(entry.timestamp)
    return round(moment.timestamp() * 1000) * 1_000_000


def _close(span: Span, entry: Entry) -> Span:
    span.end = max(span.start, _time(entry))
    return span


def _place(entry: Entry) -> dict[str, Attribute]:
    return {"turnlog.entry.id": entry.id, "turnlog.entry.seq": entry.seq}


def _fail(span: Span, error: ErrorInfo) -> None:
    span.attributes["error.type"] = error.code
    span.error = f"{error.code}: {error.message}"


def _usage(usage: TokenUsage | None) -> dict[str, Attribute]:
    if usage is None:
        return {}
    named = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_input_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        "turnlog.cost": usage.cost,
    }
    return {name: value for name, value in named.items() if value is not None}


def _tell(messages: Sequence[Message]) -> str:
    """Messages in the JSON of the conventions."""
    told = [{"role": each.role, "parts": [_part(part) for part in each.parts]} for each in messages]
    return msgspec.json.encode(told).decode()


def _part(part: Any) -> dict[str, Any]:
    match part:
        case TextPart():
            return {"type": "text", "content": part.payload.text}
        case ThinkingPart():
            return {"type": "reasoning", "content": part.payload.text}
        case ToolCallPart():
            call = part.payload
            given = call.arguments if call.arguments is not None else call.raw_args_text
            return {"type": "tool_call", "id": call.tool_call_id, "name": call.tool_name, "arguments": given}
        case ToolResultPart():
            return {
                "type": "tool_call_response",
                "id": part.payload.tool_call_id,
                "response": part.payload.text,
            }
        case _:
            return {"type": part.kind}


# ── OTLP ──


def to_otlp(spans: Iterable[Span], *, service: str = "turnlog") -> bytes:
    """Spans as OTLP JSON: what a collector takes at ``/v1/traces``."""
    told = [
        {
            "traceId": span.trace_id,
            "spanId": span.span_id,
            **({"parentSpanId": span.parent_id} if span.parent_id else {}),
            "name": span.name,
            "kind": 3 if span.kind == "chat" else 1,
            "startTimeUnixNano": str(span.start),
            "endTimeUnixNano": str(span.end),
            "attributes": _otlp(span.attributes),
            "events": [
                {"name": each.name, "timeUnixNano": str(each.time), "attributes": _otlp(each.attributes)}
                for each in span.events
            ],
            "links": [{"traceId": trace, "spanId": linked} for trace, linked in span.links],
            "status": {"code": 2, "message": span.error} if span.error else {},
        }
        for span in spans
    ]
    resource = {"attributes": _otlp({"service.name": service})}
    scopes = [{"scope": {"name": "turnlog"}, "spans": told}]
    return encode({"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]})


def _otlp(attributes: dict[str, Attribute]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Attribute) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case _:
            return {"arrayValue": {"values": [_value(each) for each in value]}}
