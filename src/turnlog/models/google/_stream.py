"""Pieces of a generateContent answer in, chunks out. Knows nothing of HTTP; skips fields it does not know."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from turnlog.contract import AgentError, Chunk, JsonObject, TextChunk, TokenUsage, scrub

from .._answer import (
    UNREADABLE,
    AnswerWriter,
    EventReader,
    LooseDecoder,
    PartKind,
    ServerEvent,
    as_count,
    as_object,
    unreadable,
)
from .._faults import map_stream_fault
from ..wire import ToolNames

ORIGIN = "google"
"""The family that reads back what this adapter puts into ``providerData``."""


class FunctionCall(msgspec.Struct, rename="camel"):
    """A call, whole."""

    name: str | None = None
    id: str | None = None
    args: msgspec.Raw = msgspec.Raw()
    will_continue: bool | None = None


class Part(msgspec.Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None


class Content(msgspec.Struct):
    parts: list[Part] | None = None


class Candidate(msgspec.Struct, rename="camel"):
    index: int = 0
    content: Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    continuation_token: str | None = None
    grounding_metadata: Any = None
    citation_metadata: Any = None
    url_context_metadata: Any = None


class PromptFeedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None
    block_reason_message: str | None = None


class Piece(msgspec.Struct, rename="camel"):
    """One event of a stream, one element of an array, or a whole answer."""

    candidates: list[Candidate] | None = None
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: msgspec.Raw = msgspec.Raw()
    model_version: str | None = None
    response_id: str | None = None
    error: Any = None


_SERVER = "the Gemini API"
_read = LooseDecoder(Piece, _SERVER)
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def read_pieces(data: bytes) -> Iterator[tuple[Piece, bytes]]:
    """The pieces that ``data`` holds, each with its own bytes; ``ModelProtocolError`` for what is none."""
    if data.lstrip()[:1] != b"[":
        lines = data.splitlines() if b"\n{" in data else ()
        if len(lines) > 1 and all(line[:1] == b"{" and line[-1:] == b"}" for line in lines if line):
            for line in filter(None, lines):  # one object after another, from a server without events
                yield _read(line), line
        else:
            yield _read(data), data
        return
    if data.strip() == b"[DONE]":  # proxies that speak other protocols too say so
        return
    try:
        items = _decode_list(data)
    except UNREADABLE as error:
        raise unreadable(data, error, _SERVER) from error
    for item in items:
        yield _read(bytes(item)), bytes(item)


def read_part(data: bytes, candidate: int, part: int) -> JsonObject:
    """A part with all its fields."""
    try:
        found: Any = json.loads(data)
        return found["candidates"][candidate]["content"]["parts"][part]
    except ValueError as error:
        raise unreadable(data, error, _SERVER) from error


def args_text(args: msgspec.Raw) -> str:
    """A call's arguments as JSON text without white space between its values; ``{}`` for none."""
    raw = bytes(args)
    if not raw or raw == b"null":
        return "{}"
    try:
        return msgspec.json.format(raw, indent=-1).decode()
    except UNREADABLE as error:
        try:
            return raw.decode()  # half a surrogate pair: whether it can be used is not decided here
        except UnicodeDecodeError:
            raise unreadable(raw, error, _SERVER) from error


_WITHHELD = (
    "SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII IMAGE_SAFETY"
    " IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION MODEL_ARMOR"
)
_FINISH: dict[str, str] = {
    **dict.fromkeys(_WITHHELD.split(), "content_filter"),
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "UNEXPECTED_TOOL_CALL": "stop",
    "CONTINUATION": "length",
}
"""``finishReason`` → our finish reason; what a newer API adds is ``other``."""

_BROKEN = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "TOO_MANY_TOOL_CALLS"})
"""Finish reasons that mean the model's own output was unusable: the next try may be fine."""

_UNSAID = "FINISH_REASON_UNSPECIFIED"
_CONTINUED = "CONTINUATION"
_ABOUT = {
    "grounding_metadata": "grounding",
    "citation_metadata": "citations",
    "url_context_metadata": "url_context",
}


class GeminiReader(EventReader[ServerEvent]):
    """Follows one answer; ``finish`` gives the chunks that end it.

    A finish reason may stand on every piece, so only the end of the stream ends the answer. One that goes
    on in a further request (``continuation``) is read on with the same reader.
    """

    def __init__(self, model: str, names: ToolNames, *, origin: JsonObject, provider: str = ORIGIN) -> None:
        super().__init__()
        self._model = model
        self._names = names
        self._origin = origin
        self._provider = provider
        self._writer = AnswerWriter(model, ORIGIN)
        self._kind: PartKind | None = None
        self._finish: str | None = None
        self._message: str | None = None
        self._counts = b""
        self._usage: TokenUsage | None = None
        self._before: TokenUsage | None = None
        self._about: JsonObject = {}
        self.continuation: str | None = None

    def _fill(self, events: Iterable[ServerEvent], chunks: list[Chunk]) -> None:
        decode = _read.strict
        for _, data in events:
            try:
                found = ((decode(data), data),)
            except UNREADABLE:
                found = read_pieces(data)
            for piece, own in found:
                candidates = piece.candidates
                if candidates and len(candidates) == 1 and self._kind == "text":
                    text = _plain_text(candidates[0])
                    if text:  # nearly every piece of an answer
                        chunks.append(TextChunk(text_delta=text))
                        self._finish = None
                        self._counts = piece.usage_metadata or self._counts
                        if self._usage is None:
                            self._count()
                            chunks += self._writer.take()
                        continue
                self._take(piece, own)
                chunks += self._writer.take()

    @property
    def cut(self) -> bool:
        """Whether the answer has not said that it is over."""
        return self._finish is None

    def finish(self) -> Sequence[Chunk]:
        """The chunks that end the answer; raises when it is not complete."""
        reason, writer = self._finish, self._writer
        self._count()
        if self._usage is not None:
            writer.put(self._usage)
        assert reason is not None, "the answer was cut"
        said = f" ({scrub(self._message)[:300]})" if self._message else ""
        if reason in _BROKEN or (reason == "UNEXPECTED_TOOL_CALL" and not writer.calls):
            raise AgentError("ModelProtocolError", f"{self._model} gave up on its answer: {reason}{said}")
        if reason == "MISSING_THOUGHT_SIGNATURE":
            raise AgentError("ModelBadRequest", f"{self._model} misses the signature of a call{said}")
        self._end_thinking()
        finish = _FINISH.get(reason, "other")
        if finish == "other" and writer.calls:  # calls come whole
            finish = "tool_calls"
        writer.finish(finish, reason, {**self._origin, **self._about})
        return writer.take()

    def left(self) -> Sequence[Chunk]:
        """What was read of an answer that failed, and what it cost."""
        self._count()
        if self._usage is not None:
            self._writer.put(self._usage)
        return self._writer.take()

    def go_on(self) -> None:
        """The answer was broken off to be continued: another stream brings the rest."""
        self._count()
        self._before, self._usage = self._usage, None
        self._finish = self.continuation = None

    # ── one piece ──

    def _take(self, piece: Piece, data: bytes) -> None:
        if piece.error is not None:
            raise map_stream_fault({"error": piece.error}, self._provider)
        self._counts = piece.usage_metadata or self._counts
        self._count()
        if piece.response_id:
            self._about.setdefault("id", piece.response_id)
        if piece.model_version:
            self._about.setdefault("model", piece.model_version)
        for position, candidate in enumerate(piece.candidates or ()):
            if candidate.index == 0:
                self._take_candidate(candidate, position, data)
        blocked = piece.prompt_feedback.block_reason if piece.prompt_feedback else None
        if blocked and not piece.candidates:
            assert piece.prompt_feedback is not None
            said = piece.prompt_feedback.block_reason_message
            raise AgentError(
                "ModelContentFiltered",
                f"{self._model}: the prompt was blocked ({blocked})"
                + (f": {scrub(said)[:300]}" if said else ""),
            )

    def _take_candidate(self, candidate: Candidate, position: int, data: bytes) -> None:
        for place, part in enumerate((candidate.content.parts if candidate.content else None) or ()):
            if part.function_call is not None:
                self._on_call(part, part.function_call)
            elif part.text is not None:
                self._on_text(part, part.text)
            else:
                self._on_other(read_part(data, position, place))
        for name, ours in _ABOUT.items():
            if found := getattr(candidate, name):
                self._about[ours] = found
        if candidate.finish_reason and candidate.finish_reason != _UNSAID:
            self._finish, self._message = candidate.finish_reason, candidate.finish_message
            self.continuation = candidate.continuation_token if self._finish == _CONTINUED else None

    def _count(self) -> None:
        """Read the newest counts. They stand on every piece: the first count at once, the last at the end."""
        counts, self._counts = self._counts, b""
        usage = usage_of(as_object(_read.plain(bytes(counts)))) if counts else None
        if usage is None:
            return
        first = self._usage is None
        self._usage = usage if self._before is None else self._before + usage
        if first:  # what is known at once counts even when the answer is broken off
            self._writer.put(self._usage)

    # ── parts ──

    def _on_text(self, part: Part, text: str) -> None:
        signature = part.thought_signature
        if not text and not signature:
            return
        if text:
            self._finish = None  # an answer that says more is not over until it says so again
        kind: PartKind = "thinking" if part.thought else "text"
        if kind != self._kind:
            self._leave()
        if signature:  # a signed part must go back as it came, so it is joined with nothing
            if kind == "thinking":
                self._writer.begin(kind)
                self._writer.say(kind, text, {**self._origin, "signature": signature})
            else:
                self._sign("text" if text else "nothing", signature)
                if text:
                    self._writer.say(kind, text, self._origin)
            self._kind = None
        else:
            self._writer.say(kind, text)
            self._kind = kind

    def _on_other(self, block: JsonObject) -> None:
        """Code that ran at Google, its result, an image, …: carried as it is."""
        if block in ({}, {"thought": True}, {"thought": False}):
            return
        self._finish = None
        kind: PartKind = "thinking" if block.get("thought") else "text"
        if kind != self._kind:
            self._leave()
        if kind == "text" and (signature := block.pop("thoughtSignature", None)):
            self._sign("text", str(signature))
        self._writer.begin(kind)
        self._writer.say(kind, "", {**self._origin, "block": block})
        self._kind = None

    def _on_call(self, part: Part, call: FunctionCall) -> None:
        self._finish = None
        if call.will_continue:
            raise AgentError(
                "ModelProtocolError",
                f"{self._model} sends the arguments of a call in pieces, which is not read here; leave "
                "streamFunctionCallArguments out of the request",
                retryable=False,
            )
        if not call.name:
            if bytes(call.args):
                raise AgentError("ModelProtocolError", f"{self._model} called a function without a name")
            return
        self._leave()
        data = dict(self._origin)
        if call.id:
            data["id"] = call.id
        if part.thought_signature:
            self._sign("call", part.thought_signature)
        opened = self._writer.begin_call(self._names.ours(call.name), data)
        self._writer.add_args(opened, args_text(call.args))
        self._writer.end_call(opened)

    def _sign(self, signed: str, signature: str) -> None:
        """The signature of the part that follows is a thought of its own, so that it is left out wherever
        thoughts are: for another model, and once what precedes it has changed."""
        self._writer.begin("thinking")
        self._writer.say("thinking", "", {**self._origin, "signature": signature, "signs": signed})

    def _leave(self) -> None:
        """What was being said is over, and what was called is complete."""
        self._end_thinking()
        self._writer.begin()

    def _end_thinking(self) -> None:
        """Thinking is marked as Google's own; text needs no mark."""
        if self._kind == "thinking":
            self._writer.say("thinking", "", self._origin)
        self._kind = None


def _plain_text(candidate: Candidate) -> str | None:
    """The text of a candidate that holds nothing else."""
    content = candidate.content
    if content is None or candidate.finish_reason or candidate.index or candidate.grounding_metadata:
        return None
    if candidate.citation_metadata or candidate.url_context_metadata:
        return None
    parts = content.parts
    if not parts or len(parts) != 1:
        return None
    part = parts[0]
    if part.thought or part.thought_signature or part.function_call is not None:
        return None
    return part.text


def usage_of(counts: JsonObject) -> TokenUsage | None:
    """Our counts of Google's, which keep thoughts and its tools' reading apart; None before there are any."""
    given = as_count(counts.get("promptTokenCount"))
    if given is None:
        return None
    read = given + (as_count(counts.get("toolUsePromptTokenCount")) or 0)
    thought = as_count(counts.get("thoughtsTokenCount"))
    written = (as_count(counts.get("candidatesTokenCount")) or 0) + (thought or 0)
    total = as_count(counts.get("totalTokenCount"))
    return TokenUsage(
        input_tokens=read,
        output_tokens=written,
        total_tokens=read + written if total is None else total,
        cached_input_tokens=as_count(counts.get("cachedContentTokenCount")),
        reasoning_tokens=thought,
    )
