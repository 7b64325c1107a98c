"""An answer made of blocks, as chunks: for providers that stream one content block after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from turnlog.contract import (
    AgentError,
    CallArgs,
    CallEnd,
    CallStart,
    Chunk,
    JsonObject,
    StreamDone,
    TextChunk,
    ThinkingChunk,
    parse_arguments,
)

PartKind: TypeAlias = Literal["text", "thinking"]


class OpenCall:
    """A call while its arguments come."""

    def __init__(self, key: str, name: str) -> None:
        self.key = key
        self.name = name
        self.args: list[str] = []
        self.end_data: JsonObject | None = None
        """What becomes known of the call only at its end."""


BlockKind: TypeAlias = Literal["text", "thinking", "call", "verbatim"]
"""What becomes of a content block: a part of ours, a call, or a block that travels as it is."""


class Block:
    """One content block of a provider that streams them, from its start to its stop."""

    def __init__(self, kind: BlockKind, raw: JsonObject) -> None:
        self.kind: BlockKind = kind
        self.raw = raw
        self.args: list[str] = []
        self.call: OpenCall | None = None
        self.signature: list[str] = []
        self.citations: list[Any] = []


class AnswerWriter:
    """Collects chunks; ``take`` gives them.

    Two blocks of the same kind never become one part. The end of a call is held back until what follows
    it is known: when the answer was cut off there, the call gets no end and ``finish`` raises instead.
    """

    def __init__(self, model: str, origin: str) -> None:
        self._model = model
        self._origin = origin
        self._out: list[Chunk] = []
        self._held: list[OpenCall] = []
        self._last: OpenCall | None = None
        self._open: PartKind | None = None
        self._seen = 0
        self.calls = 0

    def take(self) -> Sequence[Chunk]:
        taken, self._out = self._out, []
        return taken

    def put(self, chunk: Chunk) -> None:
        """A chunk that belongs to no block."""
        self._out.append(chunk)

    # ── blocks ──

    def begin(self, kind: PartKind | None = None) -> None:
        """A block begins; ``kind`` says what part it will be, when it will be one."""
        for call in self._held:
            self._out.append(CallEnd(tool_call_id=call.key, provider_data=call.end_data))
        self._held.clear()
        self._last = None
        if kind is not None and self._open == kind:
            self.say(kind, "", {"origin": self._origin})

    def say(self, kind: PartKind, text: str, data: JsonObject | None = None) -> None:
        """Text or thinking; ``data`` ends the part."""
        if not text and data is None:
            return
        if kind == "text":
            self._out.append(TextChunk(text_delta=text, provider_data=data))
        else:
            self._out.append(ThinkingChunk(text_delta=text, provider_data=data))
        self._open = kind if data is None else None

    def spoke(self, kind: PartKind) -> None:
        """A chunk of ``kind`` without data was handed on past this writer."""
        self._open = kind

    def pass_on(self, kind: PartKind, block: JsonObject) -> None:
        """A block that has no part of ours travels whole, inside an empty part."""
        if self._open == kind:
            self.say(kind, "", {"origin": self._origin})
        self.say(kind, "", {"origin": self._origin, "block": block})

    def begin_call(self, name: str, data: JsonObject) -> OpenCall:
        self.calls += 1
        self._seen += 1
        self._open = None
        call = OpenCall(f"{self._seen}", name)
        self._out.append(CallStart(tool_call_id=call.key, tool_name=name, provider_data=data))
        return call

    def add_args(self, call: OpenCall, text: str) -> None:
        if text:
            call.args.append(text)
            self._out.append(CallArgs(tool_call_id=call.key, args_text_delta=text))

    def end_call(self, call: OpenCall) -> None:
        self._held.append(call)
        self._last = call

    # ── the end ──

    def finish(self, reason: str, said: str, data: JsonObject | None = None) -> None:
        """Say that the answer is complete; ``said`` is the provider's own word for ``reason``.

        A call that the answer was cut off in gets no end: the base refuses it. Raises where a reason that
        nobody knows left it in pieces.
        """
        cut = self._last
        if cut is None or reason not in ("length", "refusal", "content_filter"):
            if cut and reason not in ("tool_calls", "stop") and parse_arguments("".join(cut.args)).error:
                raise AgentError(
                    "ModelProtocolError",
                    f"{self._model} stopped ({said}) inside a call of {cut.name!r}, so its arguments are not "
                    "complete",
                    retryable=False,
                )
            self.begin()
        if reason in ("stop", "tool_calls"):  # what is there counts, not what is said of it
            reason = "tool_calls" if self.calls else "stop"
        self._out.append(StreamDone(finish_reason=reason, provider_data=data))
