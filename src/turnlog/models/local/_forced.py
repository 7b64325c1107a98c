"""A forced tool choice, as an answer that can only be the call.

The server takes ``tool_choice`` as advice, or not at all; a schema it enforces, token by token. So the
choice becomes a schema, and the JSON that answers it becomes a call.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, cast

import msgspec

from turnlog.contract import (
    AgentError,
    CallArgs,
    CallEnd,
    CallStart,
    Chunk,
    JsonObject,
    SpecificTool,
    StreamDone,
    StreamError,
    StreamStart,
    TextChunk,
    ThinkingChunk,
    TokenUsage,
    ToolChoice,
    ToolSpec,
)

from ..wire import ToolNames, object_schema, safe_name

FAMILY = "openai-chat"
"""The protocol that a forced call is made over."""

_KEY = "forced"
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*')


def forced_tools(choice: ToolChoice | None, tools: Sequence[ToolSpec]) -> list[ToolSpec]:
    """The tools of which ``choice`` demands one; none when the model is free."""
    if isinstance(choice, SpecificTool):
        found = [tool for tool in tools if tool.name == choice.name]
        if not found:
            names = ", ".join(tool.name for tool in tools) or "none"
            raise AgentError(
                "ModelBadRequest",
                f"the tool choice is {choice.name!r}, but the tools of this call are {names}",
            )
        return found
    return list(tools) if choice == "required" else []


def answer_schema(tools: Sequence[ToolSpec]) -> JsonObject:
    """What the answer must look like: the arguments of a single tool, or the name and arguments of one."""
    if len(tools) == 1:
        return _closed(tools[0].parameter_schema)
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "name": {"const": safe_name(tool.name)},
                    "arguments": _moved(
                        _closed(tool.parameter_schema), f"#/anyOf/{place}/properties/arguments"
                    ),
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for place, tool in enumerate(tools)
        ]
    }


async def as_call(
    answer: AsyncIterator[Chunk], tools: Sequence[ToolSpec], names: ToolNames
) -> AsyncGenerator[Chunk, None]:
    """The chunks of ``answer``, its text told as a call. A call that was cut has no end (and never runs)."""
    reader = _Reader(tools[0].name if len(tools) == 1 else None, names)
    async for chunk in answer:
        match chunk:
            case TextChunk():
                for part in reader.push(chunk.text_delta):
                    yield part
            case StreamDone():
                if chunk.finish_reason != "stop":
                    raise _cut(chunk.finish_reason)
                for part in reader.end():
                    yield part
                yield msgspec.structs.replace(chunk, finish_reason="tool_calls")
            case CallStart() | CallArgs() | CallEnd():
                # Its template may let the server see a call in the very text the schema asked for.
                raise AgentError(
                    "ModelProtocolError", "the server sent a call where a schema was to be answered"
                )
            case StreamStart() | ThinkingChunk() | TokenUsage() | StreamError():
                yield chunk


class _Reader:
    """Takes the arguments out of the answer as it grows. ``name`` is known where only one tool may be."""

    def __init__(self, name: str | None, names: ToolNames) -> None:
        self._wrapped = name is None
        self._names = names
        self._name = name
        self._text = ""
        self._begun = False
        self._sent = False

    def push(self, text: str) -> list[Chunk]:
        self._text += text
        chunks: list[Chunk] = []
        if not self._begun:
            if self._wrapped:
                head = _HEAD.match(self._text)
                if head is None:
                    return []
                self._name = self._names.ours(msgspec.json.decode(head[1], type=str))
                self._text = self._text[head.end() :]
            self._begun = True
            chunks.append(
                CallStart(tool_call_id=_KEY, tool_name=self._name or "", provider_data={"origin": FAMILY})
            )
        if not self._sent:
            self._text = self._text.lstrip()
        # The last brace closes the wrapping; which one is the last shows only at the end.
        ready = self._text.rstrip(" \t\r\n}") if self._wrapped else self._text
        self._text = self._text[len(ready) :]
        if ready:
            self._sent = True
            chunks.append(CallArgs(tool_call_id=_KEY, args_text_delta=ready))
        return chunks

    def end(self) -> list[Chunk]:
        if not self._begun:
            raise AgentError(
                "ModelProtocolError", "the answer ended before it named a tool; the model was to call one"
            )
        rest = self._text.rstrip().removesuffix("}").rstrip() if self._wrapped else ""
        last: list[Chunk] = [CallArgs(tool_call_id=_KEY, args_text_delta=rest)] if rest else []
        return [*last, CallEnd(tool_call_id=_KEY)]


def _cut(reason: str) -> AgentError:
    if reason == "length":
        return AgentError(
            "ModelProtocolError",
            "the answer hit the output limit inside its tool call; raise max_tokens or n_ctx",
            retryable=False,
        )
    return AgentError("ModelProtocolError", f"the answer stopped inside its tool call ({reason})")


def _closed(schema: JsonObject) -> JsonObject:
    """No keys beyond those named: a small model invents them where it may."""
    whole = object_schema(schema)
    return whole if "additionalProperties" in whole else {**whole, "additionalProperties": False}


def _moved(node: Any, place: str) -> Any:
    """``node`` with its references within itself written for its place in a larger schema."""
    if isinstance(node, dict):
        fields = cast("dict[str, Any]", node)
        return {
            name: _moved_reference(value, place) if name == "$ref" else _moved(value, place)
            for name, value in fields.items()
        }
    return [_moved(item, place) for item in cast("list[Any]", node)] if isinstance(node, list) else node


def _moved_reference(value: Any, place: str) -> Any:
    if isinstance(value, str) and value.startswith("#"):
        return place + value[1:]
    return _moved(value, place)
