"""What the readers of streams share: JSON of a provider that does not keep its own types (what fits is taken,
the rest left empty), and an answer made of content blocks as chunks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args, get_origin

import msgspec

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

S = TypeVar("S", bound=msgspec.Struct)
E = TypeVar("E")


class _Field(NamedTuple):
    name: str
    type: Any
    struct: type[msgspec.Struct] | None
    """What it holds, or holds a list of."""
    many: bool


def fit(found: dict[str, Any], kind: type[S]) -> S:
    """``kind`` with those fields of ``found`` whose type fits."""
    taken: dict[str, Any] = {}
    fields = _fields(kind)
    for key, value in found.items():
        field = fields.get(key)
        if field is None or value is None:
            continue
        if field.struct is not None:
            _take_structs(taken, field.name, value, field.struct, field.many)
        elif field.type is msgspec.Raw:
            taken[field.name] = msgspec.Raw(json.dumps(value).encode())
        else:
            _take(taken, field.name, value, field.type)
    return kind(**taken)


def _take_structs(
    taken: dict[str, Any], name: str, value: Any, struct: type[msgspec.Struct], many: bool
) -> None:
    if many and isinstance(value, list):
        items = cast("list[Any]", value)
        taken[name] = [fit(cast("dict[str, Any]", item), struct) for item in items if type(item) is dict]
    elif not many and isinstance(value, dict):
        taken[name] = fit(cast("dict[str, Any]", value), struct)


def _take(taken: dict[str, Any], name: str, value: Any, type_: Any) -> None:
    try:
        taken[name] = msgspec.convert(value, type_, strict=False)
    except msgspec.ValidationError:
        if type_ in (str, str | None) and isinstance(value, int | float):
            taken[name] = str(value)  # an id as a number


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, _Field]:
    """What stands in the JSON → the field of ``kind``."""
    return {
        field.encode_name: _Field(field.name, field.type, *_struct_in(field.type))
        for field in msgspec.structs.fields(kind)
    }


def _struct_in(type_: Any) -> tuple[type[msgspec.Struct] | None, bool]:
    for one in get_args(type_) or (type_,):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            return one, False
        if get_origin(one) is list:
            (inner,) = get_args(one)
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                return inner, True
    return None, False


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading JSON may raise."""


class LooseDecoder(Generic[S]):
    """JSON objects as ``kind``: fast where they keep its types, else what fits of them.

    Half a surrogate pair, which only the standard library reads, is let through. ``server`` is what an error
    names; ``ModelProtocolError`` for what is no JSON object.
    """

    def __init__(self, kind: type[S], server: str) -> None:
        self._kind = kind
        self._server = server
        self.strict = msgspec.json.Decoder(kind, strict=False).decode
        """Reads what keeps its types, and raises one of ``UNREADABLE`` for anything else."""

    def __call__(self, data: bytes) -> S:
        try:
            return self.strict(data)
        except UNREADABLE as error:
            found = self.plain(data, error)
        if not isinstance(found, dict):
            raise unreadable(data, TypeError("no JSON object"), self._server)
        return fit(cast("JsonObject", found), self._kind)

    def plain(self, data: bytes, error: Exception | None = None) -> Any:
        """The value as it is."""
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as failed:
            raise unreadable(data, error or failed, self._server) from failed


class EventReader(Generic[E]):
    """Follows one answer; ``ended`` once the provider said that it is complete.

    ``batches`` gives the chunks of events that came together as one list. When one of the events cannot be
    read, the chunks of those before it are still good: ``failure`` is what to raise after them. With ``raw``
    every event has a list of its own, so that what the provider sent stands beside what was made of it.
    """

    def __init__(self) -> None:
        self.ended = False
        self.failure: Exception | None = None

    def batches(self, events: Sequence[E], raw: list[JsonObject] | None) -> Iterable[list[Chunk]]:
        if raw is not None:
            return self._one_by_one(events, raw)
        chunks: list[Chunk] = []
        try:
            self._fill(events, chunks)
        except Exception as error:
            self.failure = error
        return (chunks,) if chunks else ()

    def _one_by_one(self, events: Sequence[E], raw: list[JsonObject]) -> Iterator[list[Chunk]]:
        for event in events:
            raw.append(as_object(event) or raw_event(*cast("ServerEvent", event)))
            yield from self.batches([event], None)
            if self.ended or self.failure is not None:
                return

    def _fill(self, events: Iterable[E], chunks: list[Chunk]) -> None:
        """Add the chunks of ``events``, event by event, up to the one that ends the answer."""
        raise NotImplementedError


ServerEvent: TypeAlias = tuple[str, bytes]
"""(event name, or "" when none was sent; its data, lines joined by LF)."""


def raw_event(name: str, data: bytes) -> JsonObject:
    """An event as it came."""
    try:
        shown: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        shown = data.decode("utf-8", "replace")
    return {"event": name, "data": shown} if name else {"data": shown}


# ── single values ──


def as_object(value: Any) -> JsonObject:
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def as_count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def unreadable(data: bytes, error: Exception, server: str) -> AgentError:
    """What is no event of a stream: cut, or not the protocol of ``server`` at all."""
    start = data[:120].decode("utf-8", "replace")
    return AgentError(
        "ModelProtocolError",
        f"an event of the stream cannot be read ({error}): {start!r}; the answer was cut, "
        f"or base_url does not lead to a server of {server}",
        cause=error,
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
        self.open: PartKind | None = None
        """What the last chunk belongs to, also one that was handed on past this writer."""
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
        if kind is not None and self.open == kind:
            self.say(kind, "", {"origin": self._origin})

    def say(self, kind: PartKind, text: str, data: JsonObject | None = None) -> None:
        """Text or thinking; ``data`` ends the part."""
        if not text and data is None:
            return
        if kind == "text":
            self._out.append(TextChunk(text_delta=text, provider_data=data))
        else:
            self._out.append(ThinkingChunk(text_delta=text, provider_data=data))
        self.open = kind if data is None else None

    def pass_on(self, kind: PartKind, block: JsonObject) -> None:
        """A block that has no part of ours travels whole, inside an empty part."""
        if self.open == kind:
            self.say(kind, "", {"origin": self._origin})
        self.say(kind, "", {"origin": self._origin, "block": block})

    def begin_call(self, name: str, data: JsonObject) -> OpenCall:
        self.calls += 1
        self._seen += 1
        self.open = None
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
