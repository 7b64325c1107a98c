"""Requests to a model as data: kept with their answers in a file that people can read, and compared."""

from __future__ import annotations

import difflib
import hashlib
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from turnlog.assembly import MessageAssembler
from turnlog.context import explain
from turnlog.contract import (
    READ_ARTIFACT,
    RECALL,
    AgentError,
    CallArgs,
    CallEnd,
    CallStart,
    Chunk,
    Entry,
    ErrorInfo,
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    JsonObject,
    Message,
    MessagePart,
    ModelCallFailedEntry,
    ModelCallStartedEntry,
    ModelOutputEntry,
    RunStarted,
    RunStartedEntry,
    StreamDone,
    StreamError,
    StreamStart,
    TextChunk,
    TextPart,
    ThinkingChunk,
    ThinkingPart,
    TokenUsage,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
    ToolSpec,
    Value,
    decode,
    encode,
)
from turnlog.history import visible_entries
from turnlog.models import Model, ModelConfig, ModelInfo, ModelRequest

_FROM_OUTSIDE = ("RunAborted", "RunTimeout", "HookFailed")
_MOST_LINES = 80


class RecordedCall(Value, frozen=True, kw_only=True):
    """One call: what was asked, in words, and what the model answered or how it failed."""

    request: JsonObject
    message: Message | None = None
    finish_reason: str = "stop"
    error: ErrorInfo | None = None

    def chunks(self, model: str) -> Iterator[Chunk]:
        """The answer again. Raises the recorded failure."""
        if self.error is not None:
            raise AgentError.from_info(self.error)
        assert self.message is not None
        yield from chunks_of(self.message, model, self.finish_reason)


class Recording(Value, frozen=True, kw_only=True):
    """The first line of a recording: the model, and what it can do, which decides how it is asked."""

    turnlog: Literal["recording"]
    model: str
    features: list[str]
    context_window: int | None = None


def chunks_of(message: Message, model: str, finish_reason: str) -> Iterator[Chunk]:
    yield StreamStart(model_id=model)
    for number, part in enumerate(message.parts):
        match part:
            case TextPart():
                yield TextChunk(text_delta=part.payload.text, provider_data=part.payload.provider_data)
            case ThinkingPart():
                yield ThinkingChunk(text_delta=part.payload.text, provider_data=part.payload.provider_data)
            case ToolCallPart():
                call, key = part.payload, str(number)
                yield CallStart(tool_call_id=key, tool_name=call.tool_name, provider_data=call.provider_data)
                yield CallArgs(tool_call_id=key, args_text_delta=call.raw_args_text)
                yield CallEnd(tool_call_id=key)
            case _:
                pass  # an assistant's message holds no other part
    if message.meta and message.meta.get("usage"):
        yield decode(encode(message.meta["usage"]), TokenUsage)
    yield StreamDone(finish_reason=finish_reason)


# ── requests as data ──


def describe(
    messages: Sequence[Message],
    specs: Sequence[ToolSpec],
    system_prompt: str | None,
    *,
    params: JsonObject,
    tool_choice: ToolChoice | None = None,
    output_schema: JsonObject | None = None,
) -> JsonObject:
    """A request without what differs from run to run: ids, times, and what only one provider reads."""
    calls: dict[str, int] = {}
    told = [
        {"role": each.role, "parts": [said for part in each.parts if (said := _part(part, calls))]}
        for each in messages
    ]
    made: JsonObject = {
        "system": system_prompt,
        "messages": told,
        "tools": [
            {"name": spec.name, "description": spec.description, "parameters": spec.parameter_schema}
            for spec in specs
            if spec.name not in (RECALL, READ_ARTIFACT)  # ours, and worded anew now and then
        ],
        "params": {name: value for name, value in sorted(params.items()) if name != "role"},
        "toolChoice": tool_choice,
        "outputSchema": output_schema,
    }
    return msgspec.json.decode(encode({name: value for name, value in made.items() if value}))


def _part(part: MessagePart, calls: dict[str, int]) -> JsonObject | None:
    match part:
        case TextPart():
            return {"text": part.payload.text}
        case ThinkingPart():
            return None  # goes back to the provider that made it, and to no other
        case ToolCallPart():
            number = calls.setdefault(part.payload.tool_call_id, len(calls) + 1)
            call = part.payload
            given = call.arguments if call.arguments is not None else call.raw_args_text
            return {"call": number, "tool": call.tool_name, "arguments": given}
        case ToolResultPart():
            result = part.payload
            content: Any = result.content
            if isinstance(content, list):
                content = [_part(inner, calls) for inner in result.content]  # pyright: ignore[reportUnknownArgumentType, reportArgumentType]
            number = calls.setdefault(result.tool_call_id, len(calls) + 1)
            return {"resultOf": number, "content": content, **({"failed": True} if result.is_error else {})}
        case ImagePart():
            return {"image": part.payload.mime_type, **_bytes_of(part.payload)}
        case FileRefPart():
            return {"file": part.payload.path, **_bytes_of(part.payload)}


def _bytes_of(given: Image | FileRef) -> JsonObject:
    if given.data is not None:
        return {"sha256": hashlib.sha256(b64decode(given.data)).hexdigest()}
    address = getattr(given, "url", None) or ""
    name = address.removeprefix("blob:sha256-")
    return {"sha256": name} if name != address else {"url": address} if address else {}


def describe_request(request: ModelRequest[Any], base: ModelConfig) -> JsonObject:
    """A request as it arrives at a model whose own configuration is ``base``."""
    return describe(
        request.messages,
        request.tool_specs,
        request.system_prompt,
        params=params_of(request, base),
        tool_choice=request.tool_choice,
        output_schema=request.output_schema,
    )


def params_of(request: ModelRequest[Any], base: ModelConfig) -> JsonObject:
    """What was given with this call, apart from the model's own configuration."""
    given = msgspec.structs.asdict(request.config)
    usual = msgspec.structs.asdict(base)
    own = {name: value for name, value in given.items() if value != usual[name] and name != "tool_choice"}
    return {**own, **request.params}


def calls_in(entries: Sequence[Entry]) -> list[RecordedCall]:
    """The calls of a session's log that were answered, or failed by themselves."""
    shown = visible_entries(entries)
    found: list[RecordedCall] = []
    started: RunStarted | None = None
    number, first = 0, False
    for entry in shown:
        if isinstance(entry, RunStartedEntry):
            started, first = entry.payload, True
        elif isinstance(entry, ModelCallStartedEntry):
            number += 1
            first = entry.payload.model_call_index == 1
        elif isinstance(entry, ModelOutputEntry | ModelCallFailedEntry) and number:
            if isinstance(entry, ModelOutputEntry):
                answer: dict[str, Any] = {
                    "message": entry.payload.message,
                    "finish_reason": entry.payload.finish_reason,
                }
            elif entry.payload.error.code in _FROM_OUTSIDE:
                continue
            else:
                answer = {"error": entry.payload.error}
            found.append(RecordedCall(request=_request_in(shown, number, started, first), **answer))
    return found


def _request_in(entries: Sequence[Entry], number: int, started: RunStarted | None, first: bool) -> JsonObject:
    view = explain(entries, number)
    choice = started.tool_choice if started is not None else None
    mode = started.output_mode if started is not None else None
    if not first and choice not in ("auto", "none"):
        choice = None  # a forced choice holds for the first call
    if choice is None and mode == "tool":
        choice = "required"
    return describe(
        view.messages,
        view.tool_specs,
        view.system_prompt,
        params=(started.model_params if started is not None else None) or {},
        tool_choice=choice,
        output_schema=started.output_schema if started is not None and mode not in ("tool", "text") else None,
    )


# ── differences ──


def difference(recorded: JsonObject, now: JsonObject, name: str) -> str:
    """What changed, by name, and the two requests line by line."""
    lines = list(
        difflib.unified_diff(_lines(recorded), _lines(now), f"{name}, as recorded", "now", lineterm="", n=2)
    )
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"… and {len(lines) - _MOST_LINES} lines more"]
    return "\n".join([*(f"- {each}" for each in _changes(recorded, now)), *lines])


def _changes(recorded: JsonObject, now: JsonObject) -> Iterator[str]:
    if recorded.get("system") != now.get("system"):
        yield "the system prompt changed"
    before, after = recorded.get("messages", []), now.get("messages", [])
    for place in range(max(len(before), len(after))):
        if place >= len(before):
            yield f"message {place + 1} ({after[place]['role']}) is new"
        elif place >= len(after):
            yield f"message {place + 1} ({before[place]['role']}) is gone"
        elif before[place] != after[place]:
            yield f"message {place + 1} ({after[place]['role']}) changed"
    tools, others = _by_name(recorded), _by_name(now)
    for name in dict.fromkeys([*tools, *others]):
        if name not in others or name not in tools:
            yield f"tool {name!r} is {'new' if name in others else 'gone'}"
        for part in ("description", "parameters"):
            if name in tools and name in others and tools[name].get(part) != others[name].get(part):
                yield f"the {part} of tool {name!r} changed"
    if list(tools) != list(others) and sorted(tools) == sorted(others):
        yield "the order of the tools changed"
    params, others = recorded.get("params", {}), now.get("params", {})
    for name in dict.fromkeys([*params, *others]):
        if params.get(name) != others.get(name):
            yield f"parameter {name}: {_short(params.get(name))} is now {_short(others.get(name))}"
    for part in ("toolChoice", "outputSchema"):
        if recorded.get(part) != now.get(part):
            yield f"{part} changed"


def _by_name(request: JsonObject) -> dict[str, JsonObject]:
    return {each["name"]: each for each in request.get("tools", [])}


def _short(value: object) -> str:
    return "not given" if value is None else json.dumps(value, ensure_ascii=False)[:80]


def _lines(request: JsonObject) -> list[str]:
    """A request to read: a heading for each message and tool, and their texts below."""
    made = ["system:", *_indented(request["system"])] if request.get("system") else []
    for number, message in enumerate(request.get("messages", []), 1):
        made.append(f"message {number} {message['role']}:")
        for part in message["parts"]:
            text = part.get("text")
            made += _indented(text if text is not None else json.dumps(part, ensure_ascii=False))
    for each in request.get("tools", []):
        made += [f"tool {each['name']}:", *_indented(each.get("description") or "")]
        made += _indented(json.dumps(each.get("parameters"), indent=1, ensure_ascii=False))
    for name, value in request.get("params", {}).items():
        made.append(f"parameter {name}: {json.dumps(value, ensure_ascii=False)}")
    for name in ("toolChoice", "outputSchema"):
        if name in request:
            made += [f"{name}:", *_indented(json.dumps(request[name], indent=1, ensure_ascii=False))]
    return made


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]


# ── recording ──


class RecordingModel(Model[ModelConfig]):
    """Asks ``model`` and keeps every request with its answer; ``save`` writes them down for
    ``RecordedModel.from_log``."""

    specification = "recording"
    provider_id = "recording"

    def __init__(self, model: Model[Any]) -> None:
        super().__init__(model.descriptor.model)
        self._model = model
        self.calls: list[RecordedCall] = []

    def model_info(self) -> ModelInfo:
        return self._model.model_info()

    async def close(self) -> None:
        await self._model.close()

    async def _stream(self, request: ModelRequest[ModelConfig]) -> AsyncIterator[Chunk]:
        place, asked = len(self.calls), describe_request(request, self.get_config())
        self.calls.append(RecordedCall(request=asked))
        assembler = MessageAssembler(request.metadata.run_id)
        params = params_of(request, self.get_config())
        async for delta in self._model.stream(
            request.messages,
            request.tool_specs,
            request.system_prompt,
            tool_choice=request.tool_choice,
            system_prompt_content=request.system_prompt_content or None,
            invocation_state=request.invocation_state,
            output_schema=request.output_schema,
            request_metadata=request.metadata,
            **params,
        ):
            assembler.consume(delta)
            if isinstance(delta.payload, StreamError):
                failed = delta.payload
                meta = {"retry_after": failed.retry_after} if failed.retry_after is not None else None
                words = failed.message or failed.error_code
                error = AgentError(failed.error_code, words, retryable=failed.retryable, meta=meta)
                self.calls[place] = RecordedCall(request=asked, error=error.to_info())
            elif isinstance(delta.payload, StreamDone):  # nothing is read after it
                done = assembler.finish("")
                message = msgspec.structs.replace(done.message, run_id="")
                self.calls[place] = RecordedCall(
                    request=asked, message=message, finish_reason=done.finish_reason
                )
            yield delta.payload

    def save(self, path: str | Path) -> None:
        """Write what was asked and answered, a call a line."""
        info = self._model.model_info()
        head = Recording(
            turnlog="recording",
            model=info.model_id,
            features=sorted(info.features),
            context_window=info.context_window,
        )
        whole = [call for call in self.calls if call.message is not None or call.error is not None]
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(b"".join(encode(each) + b"\n" for each in (head, *whole)))
