"""Turns an adapter's chunks into deltas that keep every rule of the grammar."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, cast

import msgspec

from turnlog.contract import (
    CODES,
    FINISH_REASONS,
    AgentError,
    CallArgs,
    CallEnd,
    CallStart,
    Chunk,
    Clock,
    DeltaGrammar,
    DoneDelta,
    ErrorDelta,
    IdSource,
    JsonObject,
    MessageDelta,
    Prices,
    RequestMetadata,
    StartDelta,
    StreamDone,
    StreamError,
    StreamStart,
    TextChunk,
    TextDelta,
    ThinkingChunk,
    ThinkingDelta,
    TokenUsage,
    ToolCallArgsDelta,
    ToolCallEndDelta,
    ToolCallStartDelta,
    UsageDelta,
    decode,
    encode,
    parse_arguments,
    scrub,
)

C = TypeVar("C", bound=Chunk)
D = TypeVar("D", bound=MessageDelta)
_CHUNKS = (
    StreamStart,
    TextChunk,
    ThinkingChunk,
    CallStart,
    CallArgs,
    CallEnd,
    TokenUsage,
    StreamDone,
    StreamError,
)


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Halves:
    """Characters beyond the 16-bit plane that a provider cut in two: first halves wait for the second."""

    def __init__(self) -> None:
        self.waiting: dict[str, str] = {}

    def mend(self, key: str, text: str) -> str:
        """``text`` with its pairs joined; a half at the end is kept for the next call, which must come.

        An empty text says there is no more. Halves that belong to nothing become U+FFFD.
        """
        last = not text
        text = self.waiting.pop(key, "") + text
        if text.isascii() or is_unicode(text):
            return text
        if not last and "\ud800" <= text[-1] <= "\udbff":
            self.waiting[key] = text[-1]
            text = text[:-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@dataclass
class _Call:
    """One call as its adapter names it. ``held`` keeps chunks back until we know it is not a repeat."""

    our_id: str
    name: str
    provider_id: str | None
    args: list[str] = field(default_factory=list[str])
    ended: bool = False
    held: tuple[CallStart, CallEnd | None] | None = None

    @cached_property
    def final(self) -> tuple[str, object]:
        """What a call that has ended is compared by."""
        return self.name, _final(self.args)


class DeltaStream:
    """Place, time and names for chunks; ``failure`` is the ``ModelProtocolError`` of what broke a rule.

    A call that repeats the provider's id of an earlier one is held back until it is complete: the same
    name and arguments are one call delivered twice, anything else is a call of its own.
    """

    def __init__(
        self,
        metadata: RequestMetadata,
        clock: Clock,
        ids: IdSource,
        raw: list[JsonObject] | None = None,
        prices: Prices | None = None,
    ) -> None:
        self._run_id = metadata.run_id
        self._metadata = metadata
        self._prices = prices
        self._clock = clock
        self._ids = ids
        self._seq = 0
        self._silent = 0  # how many of the deltas hold nothing of the answer
        self._grammar = DeltaGrammar()
        self._calls: dict[str, _Call] = {}
        self._twins: dict[str, list[_Call]] = {}
        """The provider's id → all calls that were given it and are not held back."""
        self._in_call: _Call | None = None  # the call that the last content belonged to
        self._queue: list[MessageDelta] = []
        self._halves = Halves()
        self._raw = raw
        self.failure: Exception | None = None

    @property
    def ended(self) -> bool:
        return self._grammar.state == "ended"

    @property
    def idle(self) -> bool:
        return self._grammar.state == "idle"

    def read(self, chunks: Iterable[Chunk]) -> list[MessageDelta]:
        """The deltas of chunks that came together, up to the end of the stream or to what breaks a rule."""
        queue: list[MessageDelta] = []
        self._queue = queue
        now = ""
        grammar, waiting, run_id = self._grammar, self._halves.waiting, self._run_id
        try:
            for chunk in chunks:
                if type(chunk) is TextChunk and chunk.provider_data is None:  # nearly all chunks: no detour
                    if grammar.state != "streaming":
                        self._refuse(grammar.check("text"))
                    text = chunk.text_delta
                    if type(text) is not str or waiting or not (text.isascii() or is_unicode(text)):
                        chunk = TextChunk(text_delta=self._mend("text", text))
                    if text:
                        self._in_call = None
                    self._seq = seq = self._seq + 1
                    now = now or self._clock.now()  # one moment for all that came together
                    queue.append(TextDelta(run_id=run_id, seq=seq, payload=chunk, timestamp=now))
                elif type(chunk) is CallArgs:
                    now = now or self._clock.now()
                    self._args(chunk, now)
                elif isinstance(chunk, _CHUNKS):  # pyright: ignore[reportUnnecessaryIsInstance]
                    self._rare(chunk)
                    now = ""
                    if grammar.state == "ended":
                        break
                else:
                    raise _protocol(f"the adapter yielded a {type(chunk).__name__}, which is no chunk")
        except Exception as error:
            self.failure = error
        if self._raw and queue:
            queue[-1] = self._with_raw(queue[-1])
        return queue

    def fail(self, error: StreamError) -> ErrorDelta:
        """The last delta of a stream that failed."""
        delta = self._failed(error)
        return self._with_raw(delta) if self._raw else delta

    def _failed(self, error: StreamError) -> ErrorDelta:
        self._refuse(self._grammar.check("error"))
        return ErrorDelta(payload=_known(error), **self._place())

    def _place(self) -> dict[str, Any]:
        self._seq += 1
        return {"run_id": self._run_id, "seq": self._seq, "timestamp": self._clock.now()}

    def _args(self, chunk: CallArgs, now: str) -> None:
        call = self._calls.get(chunk.tool_call_id)
        if call is None:
            raise _protocol(f"arguments for call {chunk.tool_call_id!r}, which never started")
        if call.ended:
            raise _protocol(f"arguments for call {chunk.tool_call_id!r}, which has ended")
        text = chunk.args_text_delta
        if type(text) is not str or self._halves.waiting or not (text.isascii() or is_unicode(text)):
            text = self._mend(call.our_id, text)
        call.args.append(text)
        self._in_call = call
        if call.held is not None:
            return
        self._seq = seq = self._seq + 1
        payload = CallArgs(tool_call_id=call.our_id, args_text_delta=text)
        self._queue.append(ToolCallArgsDelta(run_id=self._run_id, seq=seq, payload=payload, timestamp=now))

    def _rare(self, chunk: Chunk) -> None:
        match chunk:
            case StreamStart():
                self._refuse(self._grammar.check("start"))
                self._silent += 1
                start = _sound(_placed(chunk, self._metadata) if self._run_id else chunk)
                self._queue.append(StartDelta(payload=start, **self._place()))
            case ThinkingChunk():
                self._refuse(self._grammar.check("thinking"))
                text = self._mend("thinking", chunk.text_delta)
                self._in_call = None if text else self._in_call
                thought = ThinkingChunk(text_delta=text, provider_data=chunk.provider_data)
                thought = thought if chunk.provider_data is None else _sound(thought)
                self._queue.append(ThinkingDelta(payload=thought, **self._place()))
            case TextChunk():
                self._refuse(self._grammar.check("text"))
                text = self._mend("text", chunk.text_delta)
                self._in_call = None if text else self._in_call
                said = _sound(TextChunk(text_delta=text, provider_data=chunk.provider_data))
                self._queue.append(TextDelta(payload=said, **self._place()))
            case TokenUsage():
                self._refuse(self._grammar.check("usage"))
                self._silent += 1
                if self._prices is not None and chunk.cost is None:
                    chunk = msgspec.structs.replace(chunk, cost=self._prices.charge(chunk))
                self._queue.append(UsageDelta(payload=_sound(chunk), **self._place()))
            case CallStart():
                self._start_call(_sound(chunk))
            case CallArgs():
                self._args(chunk, self._clock.now())
            case CallEnd():
                self._end_call(_sound(chunk))
            case StreamDone():
                self._finish(_sound(chunk))
            case StreamError():
                self._queue.append(self._failed(_sound(chunk)))

    def _finish(self, chunk: StreamDone) -> None:
        if chunk.finish_reason not in FINISH_REASONS:
            raise _protocol(
                f"the finish reason {chunk.finish_reason!r} is not one of {', '.join(FINISH_REASONS)}"
            )
        if self._grammar.state == "streaming":
            self._refuse_cut(chunk.finish_reason)
            if chunk.finish_reason == "refusal" and self._seq == self._silent:
                raise _refused(chunk.provider_data)
            self._release_held()
            for kind in list(self._halves.waiting):
                self._rare((TextChunk if kind == "text" else ThinkingChunk)(text_delta=""))
        self._refuse(self._grammar.check("done"))
        self._queue.append(DoneDelta(payload=chunk, **self._place()))

    def _refuse_cut(self, reason: str) -> None:
        """An answer that was stopped inside a call holds a call that is not complete, or only looks so."""
        call = next((one for one in self._calls.values() if not one.ended), self._in_call)
        if call is None or reason not in ("length", "content_filter", "refusal"):
            return
        where = f"inside a call of {call.name!r}, so its arguments are not complete"
        if reason == "length":
            raise AgentError(
                "ModelProtocolError",
                f"the answer reached its length limit {where}; raise max_tokens",
                retryable=False,
            )
        raise AgentError("ModelContentFiltered", f"the provider stopped the answer {where}")

    def _start_call(self, chunk: CallStart) -> None:
        if self._grammar.state != "streaming":
            self._refuse(self._grammar.check("tool_call_start"))
        if chunk.tool_call_id in self._calls:
            raise _protocol(f"call {chunk.tool_call_id!r} starts twice")
        if not chunk.tool_name:
            raise _protocol(f"call {chunk.tool_call_id!r} has no tool name")
        provider_id = (chunk.provider_data or {}).get("id") or None
        call = _Call(self._ids.call(), chunk.tool_name, provider_id)
        self._calls[chunk.tool_call_id] = self._in_call = call
        if provider_id is not None and provider_id in self._twins:
            call.held = (chunk, None)
            return
        if provider_id is not None:
            self._twins[provider_id] = [call]
        self._emit_start(call, chunk)

    def _emit_start(self, call: _Call, chunk: CallStart) -> None:
        self._refuse(self._grammar.check("tool_call_start", call.our_id))
        payload = CallStart(
            tool_call_id=call.our_id, tool_name=chunk.tool_name, provider_data=chunk.provider_data
        )
        self._queue.append(ToolCallStartDelta(payload=payload, **self._place()))

    def _end_call(self, chunk: CallEnd) -> None:
        call = self._calls.get(chunk.tool_call_id)
        if call is None or call.ended:
            why = "never started" if call is None else "has ended"
            raise _protocol(f"an end for call {chunk.tool_call_id!r}, which {why}")
        if call.our_id in self._halves.waiting:
            self._rare(CallArgs(tool_call_id=chunk.tool_call_id, args_text_delta=""))
        call.ended = True
        if call.held is None:
            self._emit_end(call, chunk)
        else:
            call.held = (call.held[0], chunk)
            if all(other.ended for other in self._twins_of(call)):
                self._release(call)

    def _emit_end(self, call: _Call, chunk: CallEnd) -> None:
        self._refuse(self._grammar.check("tool_call_end", call.our_id))
        payload = CallEnd(tool_call_id=call.our_id, provider_data=chunk.provider_data)
        self._queue.append(ToolCallEndDelta(payload=payload, **self._place()))

    def _twins_of(self, call: _Call) -> list[_Call]:
        return self._twins[call.provider_id or ""]

    def _release(self, call: _Call) -> None:
        """Let a held call go: forgotten when it repeats another, emitted otherwise."""
        assert call.held is not None
        (start, end), call.held = call.held, None
        twins = self._twins_of(call)
        if any(call.final == other.final for other in twins):
            return
        twins.append(call)
        self._emit_start(call, start)
        if call.args:
            payload = CallArgs(tool_call_id=call.our_id, args_text_delta="".join(call.args))
            self._queue.append(ToolCallArgsDelta(payload=payload, **self._place()))
        if end is not None:
            self._emit_end(call, end)

    def _release_held(self) -> None:
        for key, call in self._calls.items():
            if not call.ended:
                raise _protocol(f"the stream is done but call {key!r} ({call.name}) has no end")
        for call in self._calls.values():
            if call.held is not None:
                self._release(call)

    def _mend(self, key: str, text: object) -> str:
        if not isinstance(text, str):
            raise _protocol(f"expected text, found {type(text).__name__}")
        return self._halves.mend(key, text)

    def _with_raw(self, delta: D) -> D:
        """The delta with what the provider sent for it: for debugging alone, and without our secrets."""
        events = self._raw or []
        try:
            seen = decode(scrub(encode(events).decode()), list[Any])
        except AgentError as error:
            seen = [{"unreadable": error.message}]
        events.clear()
        return msgspec.structs.replace(delta, provider_raw={"events": seen})

    def _refuse(self, broken: str | None) -> None:
        if broken:
            raise _protocol(broken)


def _placed(start: StreamStart, meta: RequestMetadata) -> StreamStart:
    return msgspec.structs.replace(start, model_call_index=meta.model_call_index, attempt=meta.attempt)


def _sound(chunk: C) -> C:
    """The chunk as its own JSON reads; structs do not check what they are made of."""
    try:
        return decode(encode(chunk), type(chunk))
    except AgentError as error:
        raise _protocol(f"a {type(chunk).__name__} does not hold what it should: {error.message}") from error


def _known(error: StreamError) -> StreamError:
    """The error with a code of ours, what follows from that code, and no secret."""
    code, message = error.error_code, error.message
    if code not in CODES:
        code, message = "ModelUnknownError", f"{code}: {message or 'no message'}"
    retryable = CODES[code].retryable if error.retryable is None else error.retryable
    return StreamError(
        error_code=code,
        message=None if message is None else scrub(message),
        retryable=retryable,
        retry_after=error.retry_after,
    )


def _refused(data: JsonObject | None) -> AgentError:
    """The model declined and gave nothing else: its words stand in what the provider said of the stop."""
    details: Any = (data or {}).get("stop_details")
    known = cast("JsonObject", details) if isinstance(details, dict) else {"explanation": details}
    words = [str(known[name]) for name in ("category", "explanation", "message") if known.get(name)]
    said = f": {': '.join(words)[:600]}" if words else " and did not say why"
    return AgentError("ModelRefused", f"the model declined to answer{said}")


def _final(args: list[str]) -> object:
    """Arguments to compare: spelling and order of keys do not count, where they parse."""
    text = "".join(args)
    parsed = parse_arguments(text).arguments
    return text if parsed is None else msgspec.json.encode(parsed, order="sorted")


def _protocol(broken: str) -> AgentError:
    return AgentError("ModelProtocolError", f"the stream broke the delta contract: {broken}")
