"""A model that answers from a script: for tests, demos and offline runs.

Scripts lie in files too: ``scripted:answers.json``, ``answers.jsonl`` (a turn a line) or ``answers.toml``.
The document is a list of turns, or an object ``{turns, default?, loop?, modelId?, contextWindow?}``. A
turn is text or an object with the fields of :class:`Turn` in camelCase::

    {"turns": [
      {"toolCalls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]},
      {"error": {"code": "ModelOverloaded"}},
      "The sum is 3."
    ]}
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeAlias, TypeVar, cast

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
    Feature,
    IdSource,
    JsonObject,
    StreamDone,
    StreamError,
    StreamStart,
    TextChunk,
    ThinkingChunk,
    TokenUsage,
    encode,
)

from ._base import ErrorMapper, Model
from ._config import ModelInfo, ModelRequest

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


_CHARS_PER_TOKEN = 4

ScriptItem: TypeAlias = (
    str
    | Turn
    | AgentError
    | Callable[[ModelRequest], "str | Turn | AgentError | Awaitable[str | Turn | AgentError]"]
)
"""An answer's text, a whole :class:`Turn`, an error to raise, or what makes one of these of the request."""


class ScriptedModel(Model):
    """Answers with ``turns``, one for each call, in order.

    ``requests`` holds what it was asked. When the script is used up, ``loop`` starts over, ``default``
    answers from then on, and without either the call fails and says so.
    """

    provider_id: ClassVar[str] = ORIGIN
    specification: ClassVar[str] = ORIGIN
    features: ClassVar[frozenset[Feature]] = frozenset(
        {"text", "tools", "forced_tool", "thinking", "images", "files", "output_schema"}
    )

    def __init__(
        self,
        turns: ScriptItem | Iterable[ScriptItem] = (),
        *,
        model_id: str = "scripted",
        loop: bool = False,
        default: ScriptItem | None = None,
        context_window: int | None = None,
        features: Iterable[Feature] | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        error_mapper: ErrorMapper | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(None, clock=clock, ids=ids, error_mapper=error_mapper, model_id=model_id, **fields)
        single = isinstance(turns, str | Turn | AgentError) or callable(turns)
        self._turns: list[ScriptItem] = [turns] if single else list(turns)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
        self._loop = loop
        self._default = default
        self._context_window = context_window
        self._given = self.features if features is None else frozenset(features)
        self.requests: list[ModelRequest] = []
        """Every request so far, the newest last."""

    @property
    def calls(self) -> int:
        """How often it was asked."""
        return len(self.requests)

    def model_info(self) -> ModelInfo:
        return ModelInfo(
            provider_id=self.provider_id,
            specification=self.specification,
            model_id=self._config.model_id,
            context_window=self._context_window,
            features=self._given,
        )

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        number = len(self.requests)
        turn = await self._resolve(self._next(number), request)
        if turn.chunks is not None:
            for chunk in turn.chunks:
                await self._pause(turn)
                yield chunk
            return
        yield StreamStart(model_id=request.config.model_id, request_id=f"scripted-{number}")
        failure = turn.error
        length = 0
        for sent, chunk in enumerate(turn.content(number)):
            if failure is not None and sent >= failure.after:
                raise failure.build()
            await self._pause(turn)
            length += len(getattr(chunk, "text_delta", "") or getattr(chunk, "args_text_delta", ""))
            yield chunk
        if failure is not None:
            raise failure.build()
        if turn.cut:
            return
        await self._pause(turn)
        yield turn.usage or _estimate(request, length)
        yield StreamDone(finish_reason=turn.finish_reason or ("tool_calls" if turn.calls else "stop"))

    def _next(self, number: int) -> ScriptItem:
        if number <= len(self._turns):
            return self._turns[number - 1]
        if self._loop and self._turns:
            return self._turns[(number - 1) % len(self._turns)]
        if self._default is not None:
            return self._default
        has = "1 turn" if len(self._turns) == 1 else f"{len(self._turns)} turns"
        raise AgentError(
            "ModelBadRequest",
            f"{self._config.model_id}: the script has {has} and this is call {number}; "
            "add a turn, or set loop or default",
        )

    async def _resolve(self, item: ScriptItem, request: ModelRequest) -> Turn:
        if callable(item):
            made = item(request)
            item = await made if inspect.isawaitable(made) else made
        match item:
            case str():
                return Turn(text=item)
            case Turn():
                return item
            case AgentError():
                raise item
            case _:
                raise AgentError(
                    "ConfigInvalid",
                    "a scripted turn is text, a Turn, an AgentError or a function that returns one of these, "
                    f"not a {type(item).__name__}",
                )

    async def _pause(self, turn: Turn) -> None:
        if turn.delay > 0:
            await self._clock.sleep(turn.delay)


def _estimate(request: ModelRequest, output_chars: int) -> TokenUsage:
    """Four characters of JSON are a token: always the same for the same request and answer."""
    size = len(request.system_prompt or "")
    size += sum(len(encode(message.parts)) for message in request.messages)
    size += sum(len(encode(spec)) for spec in request.tool_specs)
    used = -(-size // _CHARS_PER_TOKEN)
    made = -(-output_chars // _CHARS_PER_TOKEN)
    return TokenUsage(input_tokens=used, output_tokens=made, total_tokens=used + made)


_OPTIONS: dict[str, tuple[str, type]] = {
    "loop": ("loop", bool),
    "modelId": ("model_id", str),
    "contextWindow": ("context_window", int),
}


def load_script(path: str, **config: Any) -> ScriptedModel:
    """The model whose answers ``path`` holds. Keyword arguments win over the file's own settings."""
    turns, options = read_script(path)
    return ScriptedModel(turns, **{**options, **config})


def read_script(path: str) -> tuple[list[ScriptItem], dict[str, Any]]:
    """The turns and settings in the file; ``ConfigInvalid`` names the line or the field that is wrong."""
    plain = _parse(path)
    if isinstance(plain, list):
        plain = {"turns": cast("list[Any]", plain)}
    if not isinstance(plain, dict):
        _refuse(path, "expected a list of turns or an object with turns")
    document = cast("dict[str, Any]", plain)
    unknown = sorted(set(document) - {"turns", "default", *_OPTIONS})
    if unknown:
        _refuse(path, f"unknown field {unknown[0]!r}; fields are turns, default, {', '.join(_OPTIONS)}")
    turns = document.get("turns", [])
    if not isinstance(turns, list):
        _refuse(path, "turns: expected a list")
    options: dict[str, Any] = {}
    for field, (name, kind) in _OPTIONS.items():
        if field in document:
            if type(document[field]) is not kind:
                _refuse(path, f"{field}: expected {kind.__name__}, found {document[field]!r}")
            options[name] = document[field]
    if "default" in document:
        options["default"] = _turn(path, "default", document["default"])
    found = cast("list[Any]", turns)
    return [_turn(path, f"turns[{index}]", item) for index, item in enumerate(found)], options


def _parse(path: str) -> object:
    import tomllib  # seldom needed: every import of the models would pay for it

    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        _refuse(path, f"cannot be read: {error}", error)
    try:
        match file.suffix:
            case ".toml":
                return tomllib.loads(text)
            case ".jsonl":
                return _parse_lines(path, text)
            case _:
                return json.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        _refuse(path, str(error), error)


def _parse_lines(path: str, text: str) -> list[object]:
    turns: list[object] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                turns.append(json.loads(line))
            except json.JSONDecodeError as error:
                _refuse(path, f"line {number}: {error}", error)
    return turns


def _turn(path: str, where: str, item: object) -> str | Turn:
    if isinstance(item, str):
        return item
    try:
        return msgspec.convert(item, Turn)
    except msgspec.ValidationError as error:
        _refuse(path, f"{where}: {error}", error)
    except AgentError as error:
        _refuse(path, f"{where}: {error.message}", error)


def _refuse(path: str, problem: str, cause: BaseException | None = None) -> NoReturn:
    raise AgentError("ConfigInvalid", f"script {path}: {problem}", cause=cause) from cause
