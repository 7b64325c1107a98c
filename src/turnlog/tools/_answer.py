"""What came of a call, and the words in which a model reads of a failure."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime
import decimal
import enum
import math
import os
import traceback
import uuid
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

import msgspec

from turnlog.contract import (
    CODES,
    AgentError,
    FileRefPart,
    ImagePart,
    JsonObject,
    TextPart,
    TokenUsage,
    ToolStatus,
    WidgetEvent,
    conversation,
    encode,
    text_part,
)

ResultPart: TypeAlias = TextPart | ImagePart | FileRefPart
Content: TypeAlias = str | JsonObject | list[ResultPart]

_MESSAGE_LIMIT = 4000
TRACEBACK_LIMIT = 8000
_HERE = os.path.dirname(__file__)


class ToolError(Exception):
    """Raised by a tool's author to tell the model, in these words, what went wrong.

    ``retryable`` says that the same call may work a moment later: an idempotent tool with ``retries`` is
    then run again.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "ToolExecutionError",
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        if code not in CODES:
            raise ValueError(f"unknown error code {code!r}; codes are listed in turnlog.contract.CODES")
        super().__init__(message)
        self.message = message
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after


@dataclass(frozen=True, kw_only=True)
class Deferral:
    """Why a call has no answer yet, and the question to the person or system that will give it.

    ``question`` is shown to a human, ``answer_schema`` is what the answer must fit, ``by`` names who or what
    is to answer (a person, a child session, a job). With ``state`` the tool is run again with the answer,
    which it finds in ``ctx.answers`` beside this state.
    """

    reason: str
    question: str | None = None
    answer_schema: JsonObject | None = None
    by: str | None = None
    state: JsonObject | None = None


@dataclass(frozen=True)
class ToolResult:
    """What a tool returns when plain content is not enough.

    ``content`` is whatever a tool may return by itself: text, JSON data, images, message parts. ``summary``
    and ``gist`` are its shorter versions, shown once the session has grown long. ``is_error`` marks a failure
    that is not an exception; ``artifact`` is kept apart for reading on; ``usage`` counts the tokens that the
    tool spent on models of its own.
    """

    content: Any = None
    summary: str | None = None
    gist: str | None = None
    is_error: bool = False
    artifact: bytes | None = None
    usage: TokenUsage | None = None
    deferral: Deferral | None = None

    @classmethod
    def deferred(
        cls,
        reason: str,
        *,
        question: str | None = None,
        answer_schema: JsonObject | None = None,
        by: str | None = None,
        state: JsonObject | None = None,
    ) -> ToolResult:
        """The answer comes later, from outside: the call stays open, the run is let go, and
        ``session.answer(call_id, …)`` gives the result. What the tool has started must not depend on this
        process staying alive.

        With ``state`` the answer is not the result, but what the tool needs to continue: it is run again with
        the same arguments, and ``ctx.answers`` holds the states and the answers so far."""
        given = Deferral(reason=reason, question=question, answer_schema=answer_schema, by=by, state=state)
        return cls(deferral=given)


AnswerStatus: TypeAlias = ToolStatus | Literal["deferred"]


@dataclass(frozen=True, kw_only=True)
class ToolAnswer:
    """What came of one call, made by the executor and ready for the log.

    ``artifact`` holds the whole output when ``content`` shows only a part of it; the loop stores it, tells
    the model where with :meth:`noted` and puts its name into ``kept_as``. ``traceback`` is for humans and is
    never part of ``content``; ``cause`` is for debugging and reaches neither a model nor the log.
    ``deferral`` is set when ``status`` is ``deferred``: such a call has no result yet. With ``ends_run`` the
    run ends once this is in the log, with ``handed_to`` the agent of that name answers from then on.
    """

    status: AnswerStatus
    content: Content
    error_code: str | None = None
    elapsed_ms: int | None = None
    summary: str | None = None
    gist: str | None = None
    artifact: bytes | None = None
    kept_as: str | None = None
    events: list[WidgetEvent] = field(default_factory=list[WidgetEvent])
    usage: TokenUsage | None = None
    deferral: Deferral | None = None
    ends_run: bool = False
    handed_to: str | None = None
    traceback: str | None = None
    retryable: bool = False
    cause: BaseException | None = field(default=None, repr=False, compare=False)

    @property
    def is_error(self) -> bool:
        return self.status not in ("success", "deferred")

    @classmethod
    def failed(
        cls, code: str, text: str, *, retryable: bool = False, cause: BaseException | None = None
    ) -> ToolAnswer:
        return cls(status="failed", content=clean(text), error_code=code, retryable=retryable, cause=cause)

    @classmethod
    def denied(cls, text: str) -> ToolAnswer:
        return cls(status="denied", content=clean(text), error_code="ToolDenied")

    @classmethod
    def skipped(cls, text: str, code: str = "ToolCancelled") -> ToolAnswer:
        return cls(status="skipped", content=clean(text), error_code=code)

    @classmethod
    def unknown(cls, tool_name: str) -> ToolAnswer:
        """For a call that started before a crash and left no result."""
        return cls(
            status="unknown",
            content=f"Outcome unknown: {tool_name!r} was started, and the process ended before its result "
            "was recorded. It may or may not have had its effect. Look at the actual state before calling "
            "it again.",
            error_code="ToolOutcomeUnknown",
        )

    @property
    def text(self) -> str:
        """The content as plain text; images and files as short notes."""
        match self.content:
            case str():
                return self.content
            case dict():
                return encode(self.content).decode()
            case list():
                return "\n".join(_part_text(part) for part in self.content)

    def timed(self, elapsed_ms: int) -> ToolAnswer:
        """Self with the time it took."""
        copy: ToolAnswer = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, elapsed_ms=elapsed_ms)  # every call passes here: no replace
        return copy

    def noted(self, note: str) -> ToolAnswer:
        """Self with a line added at the end of what the model sees."""
        match self.content:
            case str():
                return replace(self, content=f"{self.content}\n\n{note}" if self.content else note)
            case dict():
                return replace(self, content=[text_part(self.text), text_part(note)])
            case list():
                return replace(self, content=[*self.content, text_part(note)])


def _part_text(part: ResultPart) -> str:
    match part:
        case TextPart():
            return part.payload.text
        case ImagePart():
            return f"[image {part.payload.mime_type}]"
        case FileRefPart():
            return f"[file {part.payload.path}]"


def failure(tool_name: str, error: BaseException) -> ToolAnswer:
    """What an exception out of a tool's body tells the model: type and message. The traceback is beside it,
    for humans."""
    code, retryable = "ToolExecutionError", False
    match error:
        case AgentError():
            code, words, retryable = error.code, error.message, error.retryable
        case ToolError():
            code, words, retryable = error.code, _message(error), error.retryable
        case asyncio.CancelledError():
            code, words = "ToolCancelled", f"{tool_name!r} stopped itself before it had a result"
        case SystemExit() | KeyboardInterrupt():
            words = f"{tool_name!r} tried to end the program ({_named(error)}); it has no result"
        case BaseExceptionGroup():
            leaves = _leaves(error)
            words = f"{len(leaves)} errors: " + "; ".join(_named(leaf) for leaf in leaves[:10])
        case _:
            words = _named(error)
    return ToolAnswer(
        status="failed",
        content=clean(shorten(words, _MESSAGE_LIMIT)),
        error_code=code,
        retryable=retryable,
        traceback=_traceback(error),
        cause=error,
    )


def _traceback(error: BaseException) -> str | None:
    """Where it failed, from the tool's own code on; the end of it when it is long. None for an error that was
    raised to be told: its words are all there is to know."""
    if isinstance(error, ToolError | AgentError | asyncio.CancelledError) and error.__cause__ is None:
        return None
    start = error.__traceback__
    while start is not None and start.tb_frame.f_code.co_filename.startswith(_HERE):
        start = start.tb_next
    if start is None and error.__traceback__ is not None:
        return None  # it came from us, before the tool's first line
    try:
        lines = traceback.format_exception(type(error), error, start)
    except Exception:  # an exception whose own __str__ or notes fail
        lines = traceback.format_tb(start)
    text = clean("".join(lines))
    return text if len(text) <= TRACEBACK_LIMIT else "[…]\n" + text[-TRACEBACK_LIMIT:]


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            found.extend(_leaves(cast("BaseExceptionGroup[BaseException]", error)))
        else:
            found.append(error)
    return found


def _named(error: BaseException) -> str:
    message = _message(error)
    name = type(error).__name__
    return f"{name}: {message}" if message else name


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an exception whose own __str__ fails
        return ""


def in_words(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) if names else "none"


# ── text and JSON made fit for the log: valid Unicode, no NUL, finite numbers, no secrets ──

_MAX_DEPTH = 100
_MAX_DIGITS = 4000  # CPython itself refuses to write longer integers


class Unserialisable(Exception):
    """A value that cannot be shown to a model. The message says where it is and what it is."""


def clean(text: str) -> str:
    """``text`` without secrets, unpaired surrogates (U+FFFD) and NUL (U+2400), which stores and providers
    refuse. A subclass of str (markup, an enum, an array's scalar) is taken by its value."""
    if type(text) is not str:
        text = str.__str__(text)
    if "\x00" in text:
        text = text.replace("\x00", "\u2400")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return conversation.get().scrub(text)


def clean_bytes(data: bytes) -> bytes:
    """``data`` without secrets. Latin-1 maps every byte to a character and back, so the rest is unchanged."""
    text = data.decode("latin-1")
    found = conversation.get().scrub(text)
    return data if found == text else found.encode("latin-1")


def clean_json(value: object) -> Any:
    """``value`` as plain JSON data; raises :class:`Unserialisable`."""
    return _plain(value, "result", 0)


def _plain(value: object, where: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise Unserialisable(f"{where} is nested deeper than {_MAX_DEPTH} levels, or holds itself")
    match value:
        case enum.Enum():
            return _plain(value.value, where, depth + 1)
        case None | bool():
            return value
        case str():
            return clean(value)
        case int():
            return _integer(value)
        case float():
            # JSON has no word for these; text tells a model more than null does.
            return (
                float.__float__(value)
                if math.isfinite(value)
                else {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
            )
        case _:
            return _container(value, where, depth)


def _integer(value: int) -> int | str:
    if -(2**63) <= value < 2**64:
        return int.__int__(value)
    # A JSON number of this size would not come back as it went.
    return str(value) if value.bit_length() < _MAX_DIGITS * 3 else hex(value)


def _container(value: object, where: str, depth: int) -> Any:
    match value:
        case Mapping():
            items = cast("Mapping[object, object]", value).items()
            return {_key(key, where): _plain(item, f"{where}[{key!r}]", depth + 1) for key, item in items}
        case tuple() if hasattr(cast("Any", value), "_asdict"):
            return _plain(cast("Any", value)._asdict(), where, depth + 1)
        case list() | tuple() | deque():
            found = cast("list[object]", value)
            return [_plain(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(found)]
        case Set():
            plain = [_plain(item, f"{where}{{…}}", depth + 1) for item in cast("Set[object]", value)]
            # Sets have no order of their own; the same set must give the same bytes.
            return sorted(plain, key=lambda item: msgspec.json.encode(item, order="sorted"))
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(cast("bytes", value))).decode()
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta() | decimal.Decimal() | uuid.UUID():
            return str(value)
        case os.PathLike():
            return clean(os.fsdecode(cast("os.PathLike[str]", value)))
        case _:
            return _object(value, where, depth)


def _object(value: Any, where: str, depth: int) -> Any:
    if isinstance(value, type):
        raise Unserialisable(f"{where} is the class {value.__name__}, not a value")
    if isinstance(value, msgspec.Struct):
        return _plain(_struct_fields(value), where, depth + 1)
    if dataclasses.is_dataclass(value):
        found = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return _plain(found, where, depth + 1)
    # Duck typing: pydantic models, attrs classes, arrays and their scalars, without importing any of them.
    for method in ("model_dump", "tolist", "item"):
        convert = getattr(value, method, None)
        if not callable(convert):
            continue
        try:
            found = convert(mode="json") if method == "model_dump" else convert()
        except TypeError:
            continue  # another method of the same name
        return _plain(found, where, depth + 1)
    if hasattr(value, "__attrs_attrs__"):
        found = {each.name: getattr(value, each.name) for each in value.__attrs_attrs__}
        return _plain(found, where, depth + 1)
    raise Unserialisable(
        f"{where} is a {type(value).__name__}, which JSON cannot hold; return text, numbers, lists, dicts, "
        "dataclasses, models, images or message parts"
    )


def _struct_fields(value: msgspec.Struct) -> dict[str, Any]:
    """The fields under their wire names, with the tag, as msgspec would write them."""
    config = value.__struct_config__
    found: dict[str, Any] = {} if config.tag is None else {str(config.tag_field): config.tag}
    for name, wire_name in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
        field = getattr(value, name)
        if field is not msgspec.UNSET:
            found[wire_name] = field
    return found


def _key(key: object, where: str) -> str:
    match key:
        case enum.Enum():
            return _key(key.value, where)
        case str():
            return clean(key)
        case None:
            return "null"
        case bool():
            return "true" if key else "false"
        case int() | float() | datetime.date() | uuid.UUID() | os.PathLike() | decimal.Decimal() | bytes():
            plain = _plain(cast("object", key), where, 1)
            return plain if isinstance(plain, str) else str(plain)
        case _:
            raise Unserialisable(f"{where} has the key {key!r}; use text as keys")


def shorten(text: str, limit: int) -> str:
    """For messages: at most ``limit`` characters, and a sign that there were more."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
