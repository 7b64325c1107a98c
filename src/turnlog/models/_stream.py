"""Turns an adapter's chunks into deltas that keep every rule of the grammar."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from turnlog.contract import (
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
    MessageDelta,
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
)


@dataclass(slots=True)
class _Call:
    """One call as its adapter names it. ``held`` keeps chunks back until we know it is not a repeat."""

    our_id: str
    name: str
    provider_id: str | None
    args: list[str] = field(default_factory=list[str])
    ended: bool = False
    held: list[Chunk] | None = None


class DeltaStream:
    """Place, time and names for chunks; refuses what breaks a rule by raising ``ModelProtocolError``.

    A call that repeats the provider's id of an earlier one is held back until it is complete: the same
    name and arguments are one call delivered twice, anything else is a call of its own.
    """

    __slots__ = ("_calls", "_clock", "_grammar", "_ids", "_queue", "_run_id", "_seq")

    def __init__(self, run_id: str, clock: Clock, ids: IdSource) -> None:
        self._run_id = run_id
        self._clock = clock
        self._ids = ids
        self._seq = 0
        self._grammar = DeltaGrammar()
        self._calls: dict[str, _Call] = {}
        self._queue: list[MessageDelta] = []

    @property
    def ended(self) -> bool:
        return self._grammar.state == "ended"

    @property
    def idle(self) -> bool:
        return self._grammar.state == "idle"

    def push(self, chunk: Chunk) -> MessageDelta | None:
        """The delta of ``chunk``, or None when there is none or several: then ``take`` has them."""
        if type(chunk) is TextChunk:  # nearly all chunks are these two: no detour
            if self._grammar.state != "streaming":
                self._refuse(self._grammar.check("text"))
            self._seq += 1
            return TextDelta(run_id=self._run_id, seq=self._seq, payload=chunk, timestamp=self._clock.now())
        if type(chunk) is CallArgs:
            return self._args(chunk)
        self._rare(chunk)
        return None

    def take(self) -> list[MessageDelta]:
        taken, self._queue = self._queue, []
        return taken

    def begin(self, start: StreamStart) -> list[MessageDelta]:
        self._rare(start)
        return self.take()

    def fail(self, error: StreamError) -> ErrorDelta:
        self._refuse(self._grammar.check("error"))
        self._seq += 1
        return ErrorDelta(run_id=self._run_id, seq=self._seq, payload=error, timestamp=self._clock.now())

    def _args(self, chunk: CallArgs) -> MessageDelta | None:
        call = self._calls.get(chunk.tool_call_id)
        if call is None:
            raise _protocol(f"arguments for call {chunk.tool_call_id!r}, which never started")
        if call.ended:
            raise _protocol(f"arguments for call {chunk.tool_call_id!r}, which has ended")
        call.args.append(chunk.args_text_delta)
        if call.held is not None:
            call.held.append(chunk)
            return None
        self._seq += 1
        return ToolCallArgsDelta(
            run_id=self._run_id,
            seq=self._seq,
            payload=CallArgs(tool_call_id=call.our_id, args_text_delta=chunk.args_text_delta),
            timestamp=self._clock.now(),
        )

    def _rare(self, chunk: Chunk) -> None:
        place: dict[str, Any] = {"run_id": self._run_id, "timestamp": self._clock.now()}
        match chunk:
            case StreamStart():
                self._refuse(self._grammar.check("start"))
                self._queue.append(StartDelta(seq=self._next(), payload=chunk, **place))
            case ThinkingChunk():
                self._refuse(self._grammar.check("thinking"))
                self._queue.append(ThinkingDelta(seq=self._next(), payload=chunk, **place))
            case TextChunk():
                self._refuse(self._grammar.check("text"))
                self._queue.append(TextDelta(seq=self._next(), payload=chunk, **place))
            case TokenUsage():
                self._refuse(self._grammar.check("usage"))
                self._queue.append(UsageDelta(seq=self._next(), payload=chunk, **place))
            case CallStart():
                self._start_call(chunk)
            case CallArgs():
                if delta := self._args(chunk):
                    self._queue.append(delta)
            case CallEnd():
                self._end_call(chunk)
            case StreamDone():
                self._release_held()
                self._refuse(self._grammar.check("done"))
                self._queue.append(DoneDelta(seq=self._next(), payload=chunk, **place))
            case StreamError():
                self._queue.append(self.fail(chunk))

    def _start_call(self, chunk: CallStart) -> None:
        if self._grammar.state != "streaming":
            self._refuse(self._grammar.check("tool_call_start"))
        if chunk.tool_call_id in self._calls:
            raise _protocol(f"call {chunk.tool_call_id!r} starts twice")
        if not chunk.tool_name:
            raise _protocol(f"call {chunk.tool_call_id!r} has no tool name")
        provider_id = (chunk.provider_data or {}).get("id") or None
        repeated = provider_id is not None and any(
            other.provider_id == provider_id for other in self._calls.values()
        )
        call = _Call(self._ids.call(), chunk.tool_name, provider_id)
        self._calls[chunk.tool_call_id] = call
        if repeated:
            call.held = [chunk]
        else:
            self._emit_start(call, chunk)

    def _emit_start(self, call: _Call, chunk: CallStart) -> None:
        self._refuse(self._grammar.check("tool_call_start", call.our_id))
        payload = CallStart(
            tool_call_id=call.our_id, tool_name=chunk.tool_name, provider_data=chunk.provider_data
        )
        self._queue.append(
            ToolCallStartDelta(
                run_id=self._run_id, seq=self._next(), payload=payload, timestamp=self._clock.now()
            )
        )

    def _end_call(self, chunk: CallEnd) -> None:
        call = self._calls.get(chunk.tool_call_id)
        if call is None or call.ended:
            why = "never started" if call is None else "has ended"
            raise _protocol(f"an end for call {chunk.tool_call_id!r}, which {why}")
        call.ended = True
        if call.held is None:
            self._emit_end(call, chunk)
        else:
            call.held.append(chunk)
            if all(other.ended for other in self._twins(call)):
                self._release(call)

    def _emit_end(self, call: _Call, chunk: CallEnd) -> None:
        self._refuse(self._grammar.check("tool_call_end", call.our_id))
        payload = CallEnd(tool_call_id=call.our_id, provider_data=chunk.provider_data)
        self._queue.append(
            ToolCallEndDelta(
                run_id=self._run_id, seq=self._next(), payload=payload, timestamp=self._clock.now()
            )
        )

    def _twins(self, call: _Call) -> list[_Call]:
        return [
            other
            for other in self._calls.values()
            if other is not call and other.provider_id == call.provider_id and other.held is None
        ]

    def _release(self, call: _Call) -> None:
        """Let a held call go: forgotten when it repeats another to the letter, emitted otherwise."""
        held, call.held = call.held or [], None
        text = "".join(call.args)
        if any(other.name == call.name and "".join(other.args) == text for other in self._twins(call)):
            call.provider_id = None
            return
        for chunk in held:
            match chunk:
                case CallStart():
                    self._emit_start(call, chunk)
                case CallEnd():
                    self._emit_end(call, chunk)
                case _:
                    pass
            if isinstance(chunk, CallStart) and text:
                self._refuse(self._grammar.check("tool_call_args", call.our_id))
                self._queue.append(
                    ToolCallArgsDelta(
                        run_id=self._run_id,
                        seq=self._next(),
                        payload=CallArgs(tool_call_id=call.our_id, args_text_delta=text),
                        timestamp=self._clock.now(),
                    )
                )

    def _release_held(self) -> None:
        for key, call in self._calls.items():
            if not call.ended:
                raise _protocol(f"the stream is done but call {key!r} ({call.name}) has no end")
            if call.held is not None:
                self._release(call)

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _refuse(self, broken: str | None) -> None:
        if broken:
            raise _protocol(broken)


def _protocol(broken: str) -> AgentError:
    return AgentError("ModelProtocolError", f"the stream broke the delta contract: {broken}")
