"""How OpenAI, Anthropic and LangChain spell a message."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from turnlog.contract import (
    PDF,
    TEXT,
    AgentError,
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    JsonObject,
    MessagePart,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResultPart,
    decode_text,
    parse_arguments,
    text_part,
    thinking_part,
    tool_result_part,
)

Role = Literal["system", "user", "assistant", "tool"]
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)


@dataclass(frozen=True)
class Said:
    """One message, in our own parts. ``names`` are the tools of a tool message's results, by call."""

    role: Role
    parts: list[MessagePart]
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    model: str | None = None


def refuse(place: int, why: str) -> AgentError:
    return AgentError("InvalidMessage", f"message {place} cannot be imported: {why}", meta={"message": place})


def _object(value: Any, place: int, what: str = "it") -> JsonObject:
    if hasattr(value, "model_dump"):  # a message object of the other system's own library
        value = value.model_dump()
    if not isinstance(value, Mapping):
        raise refuse(place, f"{what} is a {type(value).__name__}, not an object")
    return dict(cast("Mapping[str, Any]", value))


def _string(value: Any, place: int, what: str) -> str:
    if not isinstance(value, str):
        raise refuse(place, f"{what} is a {type(value).__name__}, not text")
    return value


def _list(value: Any, place: int, what: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise refuse(place, f"{what} is a {type(value).__name__}, not a list")
    return list(cast("Sequence[Any]", value))


def _blocks(content: Any, place: int) -> list[JsonObject]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    found = _list(content, place, "its content")
    return [
        {"type": "text", "text": block} if isinstance(block, str) else _object(block, place, "a part of it")
        for block in found
    ]


def _image(mime_type: Any, data: Any, place: int) -> ImagePart:
    data = _string(data, place, "an image's data")
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise refuse(place, "an image's data is not base64") from None
    return ImagePart(payload=Image(mime_type=_string(mime_type, place, "an image's type"), data=data))


def _file(name: Any, url: Any, place: int) -> FileRefPart:
    """A file inside the messages; one that lies at the provider is only named."""
    name = name if isinstance(name, str) and name else "file"
    found = _DATA_URL.fullmatch(url) if isinstance(url, str) else None
    if found is None:
        return FileRefPart(payload=FileRef(path=name))
    try:
        size = len(base64.b64decode(found[2], validate=True))
    except ValueError:
        raise refuse(place, "a file's data is not base64") from None
    return FileRefPart(payload=FileRef(path=name, mime_type=found[1], size=size, data=found[2]))


def _image_at(url: Any, place: int) -> ImagePart:
    url = _string(url, place, "an image's address")
    if found := _DATA_URL.fullmatch(url):
        return _image(found[1], found[2], place)
    return ImagePart(payload=Image(mime_type="image/*", url=url))


def _part(block: JsonObject, place: int) -> MessagePart | None:
    """A part of a message in any of the spellings; None for what has no place in a log."""
    kind = block.get("type")
    match kind:
        case "text" | "input_text" | "output_text":
            return text_part(_string(block.get("text"), place, "a text"))
        case "refusal":
            return text_part(_string(block.get("refusal"), place, "a refusal"))
        case "image_url":
            where = block.get("image_url")
            return _image_at(where.get("url") if isinstance(where, dict) else where, place)  # pyright: ignore
        case "image" if isinstance(block.get("source"), dict):
            source = cast("JsonObject", block["source"])
            if source.get("type") == "base64":
                return _image(source.get("media_type"), source.get("data"), place)
            return _image_at(source.get("url"), place)
        case "image" if "base64" in block or "data" in block:
            return _image(block.get("mime_type"), block.get("base64") or block.get("data"), place)
        case "image":
            return _image_at(block.get("url"), place)
        case "file" if isinstance(block.get("file"), dict):
            file = cast("JsonObject", block["file"])
            return _file(file.get("filename"), file.get("file_data"), place)
        case "document" if isinstance(block.get("source"), dict):
            source = cast("JsonObject", block["source"])
            data = source.get("data")
            if source.get("type") == "text" and isinstance(data, str):
                data = base64.b64encode(data.encode()).decode()
            return _file(block.get("title"), f"data:{source.get('media_type')};base64,{data}", place)
        case "thinking":
            return thinking_part(_string(block.get("thinking"), place, "a thought"))
        case "reasoning":
            return thinking_part(str(block.get("reasoning") or block.get("text") or ""))
        case "redacted_thinking" | "tool_call_chunk":
            return None
        case _:
            raise refuse(place, f"it has a part of type {kind!r}, which a log does not hold; leave it out")


def _parts(content: Any, place: int) -> list[MessagePart]:
    found: list[MessagePart] = []
    blocks = _blocks(content, place)
    for number, block in enumerate(blocks, 1):
        try:
            part = _part(block, place)
        except AgentError as error:
            if len(blocks) == 1:
                raise
            why = error.message.partition(": ")[2]
            raise refuse(place, f"part {number}: {why}") from None
        if part is not None:
            found.append(part)
    return found


def _call(id: Any, name: Any, arguments: Any, place: int) -> ToolCallPart:
    if isinstance(arguments, str):
        parsed = parse_arguments(arguments)
        raw, arguments = arguments, parsed.arguments
    else:
        arguments = _object(arguments, place, "the arguments of a call")
        raw = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return ToolCallPart(
        payload=ToolCall(
            tool_call_id=str(id or ""),
            tool_name=_string(name, place, "a tool's name"),
            arguments=arguments,
            raw_args_text=raw,
        )
    )


def _result(id: Any, content: Any, is_error: bool, place: int) -> ToolResultPart:
    parts = _parts(content, place)
    if all(isinstance(part, TextPart) for part in parts):
        text = "".join(part.payload.text for part in parts if isinstance(part, TextPart))
        return tool_result_part(str(id or ""), text, is_error=is_error)
    return tool_result_part(str(id or ""), cast("Any", parts), is_error=is_error)


# ── reading ──


def _read_openai(given: Any) -> list[Said]:
    found: list[Said] = []
    messages = given
    if isinstance(given, Mapping):  # a whole request, of either of the two protocols
        request = cast("JsonObject", given)
        messages = request.get("messages", request.get("input"))
        if request.get("instructions"):
            found.append(Said("system", _parts(request["instructions"], 0)))
    asked: dict[str, str] = {}
    """The newest call without an id by its function's name, as older messages have it."""
    for place, message in enumerate(_list(messages, 0, "the conversation"), 1):
        message = _object(message, place)
        role, content = message.get("role"), message.get("content")
        if role is None and "type" in message:
            _read_item(message, place, found)
            continue
        match role:
            case "system" | "developer":
                found.append(Said("system", _parts(content, place)))
            case "user":
                found.append(Said("user", _parts(content, place)))
            case "assistant":
                parts = _parts(content, place)
                if not parts and message.get("refusal"):
                    parts.append(text_part(_string(message["refusal"], place, "a refusal")))
                for each in _list(message.get("tool_calls") or [], place, "tool_calls"):
                    call = _object(each, place, "a call")
                    function = _object(call.get("function"), place, "the function of a call")
                    parts.append(
                        _call(call.get("id"), function.get("name"), function.get("arguments", ""), place)
                    )
                if message.get("function_call"):
                    function = _object(message["function_call"], place, "function_call")
                    name = str(function.get("name"))
                    asked[name] = f"function_{place}"
                    parts.append(_call(asked[name], name, function.get("arguments", ""), place))
                found.append(Said("assistant", parts, model=message.get("model")))
            case "tool":
                found.append(Said("tool", [_result(message.get("tool_call_id"), content, False, place)]))
            case "function" if message.get("name") in asked:
                called = asked.pop(message["name"])
                found.append(Said("tool", [_result(called, content, False, place)]))
            case _:
                raise refuse(place, f"its role is {role!r}")
    return found


def _read_item(item: JsonObject, place: int, found: list[Said]) -> None:
    """An item of the Responses protocol: calls and thoughts belong to the answer that they stand beside."""
    kind = item.get("type")
    part: MessagePart | None = None
    match kind:
        case "function_call":
            part = _call(item.get("call_id"), item.get("name"), item.get("arguments", ""), place)
        case "reasoning":
            blocks = [
                _object(each, place, "a summary")
                for each in _list(item.get("summary") or [], place, "summary")
            ]
            text = "\n\n".join(str(block.get("text", "")) for block in blocks)
            part = thinking_part(text) if text else None
        case "function_call_output":
            found.append(Said("tool", [_result(item.get("call_id"), item.get("output"), False, place)]))
            return
        case _:
            raise refuse(place, f"it is an item of type {kind!r}, which a log does not hold; leave it out")
    if part is None:
        return
    if not found or found[-1].role != "assistant":
        found.append(Said("assistant", []))
    found[-1].parts.append(part)


def _read_anthropic(given: Any) -> list[Said]:
    found: list[Said] = []
    messages = given
    if isinstance(given, Mapping):
        request = cast("JsonObject", given)
        messages = request.get("messages")
        if request.get("system"):
            found.append(Said("system", _parts(request["system"], 0)))
    for place, message in enumerate(_list(messages, 0, "the conversation"), 1):
        message = _object(message, place)
        role = message.get("role")
        if role not in ("user", "assistant", "system"):
            raise refuse(place, f"its role is {role!r}")
        parts: list[MessagePart] = []
        results: list[MessagePart] = []
        for block in _blocks(message.get("content"), place):
            if block.get("type") == "tool_use":
                parts.append(_call(block.get("id"), block.get("name"), block.get("input"), place))
            elif block.get("type") == "tool_result":
                is_error = bool(block.get("is_error"))
                results.append(_result(block.get("tool_use_id"), block.get("content"), is_error, place))
            elif (part := _part(block, place)) is not None:
                parts.append(part)
        if results:
            found.append(Said("tool", results))
        if parts or not results:
            found.append(Said(role, parts, model=message.get("model")))
    return found


_LANGCHAIN_ROLES: dict[str, Role] = {
    "human": "user",
    "user": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "HumanMessage": "user",
    "AIMessage": "assistant",
    "SystemMessage": "system",
    "ToolMessage": "tool",
}


def _read_langchain(messages: Any) -> list[Said]:
    found: list[Said] = []
    for place, message in enumerate(_list(messages, 0, "the conversation"), 1):
        message = _object(message, place)
        kind = message.get("type")
        data = _object(message.get("data", message), place, "its data")
        if kind == "constructor":  # as dumpd and dumps of langchain_core write it
            data = _object(message.get("kwargs"), place, "its kwargs")
            kind = data.get("type") or str(message.get("id")).rpartition("'")[0].rpartition("'")[2]
        role = _LANGCHAIN_ROLES.get(str(kind))
        if role is None:
            raise refuse(place, f"its type is {kind!r}")
        if role == "tool":
            is_error = data.get("status") == "error"
            result = _result(data.get("tool_call_id"), data.get("content"), is_error, place)
            found.append(Said("tool", [result]))
            continue
        blocks = [
            block
            for block in _blocks(data.get("content"), place)
            if block.get("type") not in ("tool_use", "tool_call")  # which tool_calls has
        ]
        parts = _parts(blocks, place)
        for each in _list(data.get("tool_calls") or [], place, "tool_calls"):
            call = _object(each, place, "a call")
            parts.append(_call(call.get("id"), call.get("name"), call.get("args"), place))
        metadata = data.get("response_metadata")
        model = cast("JsonObject", metadata).get("model_name") if isinstance(metadata, dict) else None
        found.append(Said(role, parts, model=model))
    return found


def find_format(given: Any) -> str:
    """Which of the spellings this is. Plain words are the same in two of them. Raises ``InvalidMessage``."""
    messages = given
    if isinstance(given, Mapping):
        request = cast("JsonObject", given)
        if "system" in request:
            return "anthropic"
        messages = request.get("messages", request.get("input"))
    for place, message in enumerate(_list(messages, 0, "the conversation"), 1):
        told = _format_of(_object(message, place), place)
        if told is not None:
            return told
    return "openai"


def _format_of(message: JsonObject, place: int) -> str | None:
    kind, role = message.get("type"), message.get("role")
    if role is None and (kind == "constructor" or kind in _LANGCHAIN_ROLES):
        return "langchain"
    if role in ("tool", "developer", "function") or "tool_calls" in message or "function_call" in message:
        return "openai"
    if role is None:
        return "openai" if kind is not None else None
    for block in _blocks(message.get("content"), place):
        if block.get("type") in ("tool_use", "tool_result", "thinking", "document") or "source" in block:
            return "anthropic"
        if block.get("type") in ("image_url", "input_text", "output_text", "file", "refusal"):
            return "openai"
    return None


READERS: dict[str, Callable[[Any], list[Said]]] = {
    "openai": _read_openai,
    "anthropic": _read_anthropic,
    "langchain": _read_langchain,
}


# ── writing ──


def _content(parts: Sequence[MessagePart], shown: Callable[[Image | FileRef], JsonObject]) -> Any:
    """Text alone as text, else a list of blocks."""
    if all(isinstance(part, TextPart) for part in parts):
        return "".join(part.payload.text for part in parts if isinstance(part, TextPart))
    blocks: list[JsonObject] = []
    for part in parts:
        if isinstance(part, TextPart):
            blocks.append({"type": "text", "text": part.payload.text})
        elif isinstance(part, ImagePart | FileRefPart):
            blocks.append(shown(part.payload))
    return blocks


def _result_content(part: ToolResultPart, shown: Callable[[Image | FileRef], JsonObject]) -> Any:
    content = part.payload.content
    return _content(content, shown) if isinstance(content, list) else part.payload.text


def _openai_shown(given: Image | FileRef) -> JsonObject:
    if isinstance(given, Image):
        url = given.url or f"data:{given.mime_type};base64,{given.data}"
        return {"type": "image_url", "image_url": {"url": url}}
    if given.data is None:
        return {"type": "text", "text": f"[file {given.path}]"}
    data = f"data:{given.mime_type};base64,{given.data}"
    return {"type": "file", "file": {"filename": given.path, "file_data": data}}


def _anthropic_shown(given: Image | FileRef) -> JsonObject:
    kind: JsonObject = {"type": "image"}
    if isinstance(given, FileRef):
        if given.data is None:
            return {"type": "text", "text": f"[file {given.path}]"}
        kind = {"type": "document", "title": given.path}
        text = None if given.mime_type == PDF else decode_text(base64.b64decode(given.data))
        if text is not None:
            return {**kind, "source": {"type": "text", "media_type": TEXT, "data": text}}
    if given.data is None:
        return {**kind, "source": {"type": "url", "url": given.url}}
    return {**kind, "source": {"type": "base64", "media_type": given.mime_type, "data": given.data}}


def _split(said: Said) -> tuple[list[MessagePart], list[ToolCall]]:
    calls = [part.payload for part in said.parts if isinstance(part, ToolCallPart)]
    return [part for part in said.parts if not isinstance(part, ToolCallPart)], calls


def _write_openai(conversation: Sequence[Said]) -> list[JsonObject]:
    made: list[JsonObject] = []
    for said in conversation:
        if said.role == "tool":
            for part in said.parts:
                if isinstance(part, ToolResultPart):
                    content = _result_content(part, _openai_shown)
                    made.append(
                        {"role": "tool", "tool_call_id": part.payload.tool_call_id, "content": content}
                    )
            continue
        words, calls = _split(said)
        message: JsonObject = {"role": said.role, "content": _content(words, _openai_shown)}
        if calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [
                {
                    "id": call.tool_call_id,
                    "type": "function",
                    "function": {"name": call.tool_name, "arguments": call.raw_args_text},
                }
                for call in calls
            ]
        made.append(message)
    return made


def _write_anthropic(conversation: Sequence[Said]) -> JsonObject:
    system = "\n\n".join(_text_of(said) for said in conversation if said.role == "system")
    messages: list[JsonObject] = []
    results: list[JsonObject] = []
    for said in conversation:
        if said.role == "tool":
            results += [_anthropic_result(part) for part in said.parts if isinstance(part, ToolResultPart)]
            continue
        if said.role == "system":
            continue
        words, calls = _split(said)
        content = _content(words, _anthropic_shown)
        uses: list[JsonObject] = [
            {
                "type": "tool_use",
                "id": call.tool_call_id,
                "name": call.tool_name,
                "input": call.arguments if call.arguments is not None else {},
            }
            for call in calls
        ]
        if said.role == "user":  # results come first, in the message that follows their calls
            uses, results = results, []
            content = [*uses, *_as_blocks(content)] if uses else content
        elif uses:
            content = [*_as_blocks(content), *uses]
        if results:
            messages.append({"role": "user", "content": results})
            results = []
        messages.append({"role": said.role, "content": content})
    if results:
        messages.append({"role": "user", "content": results})
    return {"system": system, "messages": messages} if system else {"messages": messages}


def _anthropic_result(part: ToolResultPart) -> JsonObject:
    made: JsonObject = {
        "type": "tool_result",
        "tool_use_id": part.payload.tool_call_id,
        "content": _result_content(part, _anthropic_shown),
    }
    return {**made, "is_error": True} if part.payload.is_error else made


def _as_blocks(content: Any) -> list[JsonObject]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return cast("list[JsonObject]", content)


def _text_of(said: Said) -> str:
    return "".join(part.payload.text for part in said.parts if isinstance(part, TextPart))


_LANGCHAIN_TYPES = {"system": "system", "user": "human", "assistant": "ai"}


def _write_langchain(conversation: Sequence[Said]) -> list[JsonObject]:
    made: list[JsonObject] = []
    for said in conversation:
        if said.role == "tool":
            made += [
                _langchain_result(part, said.names) for part in said.parts if isinstance(part, ToolResultPart)
            ]
            continue
        words, calls = _split(said)
        kind = _LANGCHAIN_TYPES[said.role]
        data: JsonObject = {"type": kind, "content": _content(words, _openai_shown)}
        if calls:
            data["tool_calls"] = [
                {
                    "type": "tool_call",
                    "id": call.tool_call_id,
                    "name": call.tool_name,
                    "args": call.arguments if call.arguments is not None else {},
                }
                for call in calls
            ]
        made.append({"type": kind, "data": data})
    return made


def _langchain_result(part: ToolResultPart, names: Mapping[str, str]) -> JsonObject:
    result = part.payload
    data: JsonObject = {
        "type": "tool",
        "content": _result_content(part, _openai_shown),
        "tool_call_id": result.tool_call_id,
        "status": "error" if result.is_error else "success",
    }
    if name := names.get(result.tool_call_id):
        data["name"] = name
    return {"type": "tool", "data": data}


WRITERS: dict[str, Callable[[Sequence[Said]], Any]] = {
    "openai": _write_openai,
    "anthropic": _write_anthropic,
    "langchain": _write_langchain,
}
