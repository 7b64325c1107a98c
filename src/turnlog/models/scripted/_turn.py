"""One scripted answer, and the chunks it becomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    JsonObject,
    StreamDone,
    StreamError,
    StreamStart,
    TextChunk,
    ThinkingChunk,
    TokenUsage,
    encode,
)

ORIGIN = "scripted"
_LONGEST_CHUNK = 16
S = TypeVar("S", bound=msgspec.Struct)

_CHUNKS: dict[str, Any] = {
    "start": StreamStart,
    "text": TextChunk,
    "thinking": ThinkingChunk,
    "tool_call_start": CallStart,
    "tool_call_args": CallArgs,
    "tool_call_end": CallEnd,
    "usage": TokenUsage,
    "done": StreamDone,
    "error": StreamError,
}


class _Scripted(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """What a script is made of. In Python fields are snake_case, in a file camelCase."""


class ScriptedCall(_Scripted, frozen=True, kw_only=True):
    """A tool call. ``arguments`` is an object, or ``raw_args`` the exact text, parsable or not.

    ``id`` is what the provider would call it; it ends up in ``provider_data``, never as our call id.
    """

    name: str
    arguments: JsonObject | None = None
    raw_args: str | None = None
    id: str | None = None

    def __post_init__(self) -> None:
        if self.arguments is not None and self.raw_args is not None:
            raise AgentError("ConfigInvalid", f"call {self.name!r}: give arguments or rawArgs, not both")

    @property
    def args_text(self) -> str:
        if self.raw_args is not None:
            return self.raw_args
        return encode(self.arguments or {}).decode()


class ScriptedError(_Scripted, frozen=True, kw_only=True):
    """The call fails with ``code`` once ``after`` content chunks were sent."""

    code: str
    message: str = "a scripted failure"
    retryable: bool | None = None
    retry_after: float | None = None
    after: int = 0

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise AgentError(
                "ConfigInvalid", f"a scripted error has the code {self.code!r}, which is not in errors"
            )

    def build(self) -> AgentError:
        meta = None if self.retry_after is None else {"retry_after": self.retry_after}
        return AgentError(self.code, self.message, retryable=self.retryable, meta=meta)


class Turn(_Scripted, frozen=True, kw_only=True):
    """One answer: thinking, then text, then calls, then usage and the end.

    ``delay`` seconds pass on the model's clock before each chunk; ``chunk_size`` characters make a chunk
    (by default every text comes in several). ``cut`` stops without a terminal, a last call in the middle
    of its arguments. ``chunks`` replaces everything else and is sent as it is, rules kept or not.
    Calls and errors may be given as plain dicts.
    """

    text: str | None = None
    thinking: str | None = None
    tool_calls: Sequence[Any] = ()
    usage: TokenUsage | None = None
    finish_reason: str | None = None
    error: Any = None
    delay: float = 0.0
    chunk_size: int | None = None
    cut: bool = False
    chunks: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        calls = tuple(_as(ScriptedCall, call, f"toolCalls[{i}]") for i, call in enumerate(self.tool_calls))
        msgspec.structs.force_setattr(self, "tool_calls", calls)
        if self.error is not None:
            msgspec.structs.force_setattr(self, "error", _as_error(self.error))
        if self.chunks is not None:
            chunks = tuple(_as_chunk(chunk, f"chunks[{i}]") for i, chunk in enumerate(self.chunks))
            msgspec.structs.force_setattr(self, "chunks", chunks)
        if self.chunk_size is not None and self.chunk_size < 1:
            raise AgentError("ConfigInvalid", f"chunkSize is {self.chunk_size}; it must be at least 1")
        if self.finish_reason is not None and self.finish_reason not in FINISH_REASONS:
            raise AgentError(
                "ConfigInvalid",
                f"finishReason is {self.finish_reason!r}; it may be {', '.join(FINISH_REASONS)}",
            )

    @property
    def calls(self) -> tuple[ScriptedCall, ...]:
        return cast("tuple[ScriptedCall, ...]", self.tool_calls)

    def content(self, number: int) -> Iterator[Chunk]:
        """The chunks between start and end, of the ``number``-th answer."""
        for piece in self._split(self.thinking or ""):
            yield ThinkingChunk(text_delta=piece)
        for piece in self._split(self.text or ""):
            yield TextChunk(text_delta=piece)
        for index, call in enumerate(self.calls):
            is_cut = self.cut and index == len(self.calls) - 1
            yield from self._call(call, f"{number}.{index}", is_cut)

    def _call(self, call: ScriptedCall, key: str, is_cut: bool) -> Iterator[Chunk]:
        provider_data = {"origin": ORIGIN, "id": call.id or f"scripted_{key}"}
        yield CallStart(tool_call_id=key, tool_name=call.name, provider_data=provider_data)
        text = call.args_text
        for piece in self._split(text[: len(text) // 2] if is_cut else text):
            yield CallArgs(tool_call_id=key, args_text_delta=piece)
        if not is_cut:
            yield CallEnd(tool_call_id=key)

    def _split(self, text: str) -> list[str]:
        size = self.chunk_size or max(1, min(_LONGEST_CHUNK, -(-len(text) // 3)))
        return [text[at : at + size] for at in range(0, len(text), size)]


def _as(cls: type[S], given: object, where: str) -> S:
    if isinstance(given, cls):
        return given
    if not isinstance(given, Mapping):
        raise AgentError("ConfigInvalid", f"{where}: expected a {cls.__name__}, found {given!r}")
    names = dict(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))
    plain = {names.get(key, key): value for key, value in cast("Mapping[str, Any]", given).items()}
    try:
        return msgspec.convert(plain, cls)
    except msgspec.ValidationError as error:
        raise AgentError("ConfigInvalid", f"{where}: {error}", cause=error) from error


def _as_error(given: object) -> ScriptedError:
    if isinstance(given, AgentError):
        return ScriptedError(
            code=given.code,
            message=given.message,
            retryable=given.retryable,
            retry_after=given.retry_after,
        )
    if isinstance(given, str):
        return ScriptedError(code=given)
    return _as(ScriptedError, given, "error")


def _as_chunk(given: object, where: str) -> Any:
    if not isinstance(given, Mapping):
        return given  # whatever it is: a test may want to see what the base makes of it
    plain = cast("Mapping[str, Any]", given)
    cls = _CHUNKS.get(plain.get("kind", ""))
    if cls is None or not isinstance(plain.get("payload"), Mapping):
        raise AgentError(
            "ConfigInvalid",
            f"{where}: expected {{kind, payload}} with a kind of {', '.join(_CHUNKS)}, found {dict(plain)!r}",
        )
    return _as(cls, plain["payload"], f"{where}.payload")
