"""What a Chat Completions stream is made of: its chunks as servers send them, fragments of tool calls put to
the call they belong to, and thoughts written into the text.

Fields we do not read are skipped while decoding. Where a server sends another type than the protocol
says, the chunk is read again without types and what fits is taken.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from turnlog.contract import AgentError, CallArgs, CallEnd, CallStart, Chunk, TextChunk, ThinkingChunk, encode

from .._answer import LooseDecoder
from ..wire import ToolNames


class FunctionDelta(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | list[Any] | None = None


class CallDelta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None
    extra_content: dict[str, Any] | None = None


class Delta(msgspec.Struct):
    content: str | list[Any] | None = None
    tool_calls: list[CallDelta] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    refusal: str | None = None
    images: list[dict[str, Any]] | None = None
    function_call: FunctionDelta | None = None


class Choice(msgspec.Struct):
    index: int = 0
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


class GroqExtra(msgspec.Struct):
    usage: dict[str, Any] | None = None
    error: Any = None


class Completion(msgspec.Struct):
    """One chunk, or a whole answer that was not streamed."""

    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    id: str | None = None
    model: str | None = None
    x_groq: GroqExtra | None = None
    object: str | None = None
    message: Any = None
    msg: Any = None
    detail: Any = None
    type: Any = None
    code: Any = None
    base_resp: dict[str, Any] | None = None


_decode = LooseDecoder(Completion, "Chat Completions")
decode_strict = _decode.strict
"""A chunk that keeps its types, which nearly every one does; ``decode_chunk`` reads any other."""


def decode_chunk(data: bytes) -> Completion:
    """``ModelProtocolError`` for what is no JSON: a cut stream, or no such stream at all."""
    if data[:1] != b"{" and not isinstance(found := _decode.plain(data), dict):
        return Completion(error=found)
    return _decode(data)


@dataclass(slots=True)
class _OpenCall:
    number: int
    index: int | None
    id: str
    name: str = ""
    extra: dict[str, Any] | None = None
    args: list[str] = field(default_factory=list[str])
    told: dict[str, Any] | None = None
    started: bool = False

    @property
    def key(self) -> str:
        return f"c{self.number}"


class CallTable:
    """Servers leave out indexes or use one for all calls, leave out ids, repeat names and ids in every
    fragment, cut names in pieces, send a call whole or twice. A fragment continues the call it names,
    unless it says that it is another one: a new id, a new name, or new arguments after complete ones."""

    def __init__(self, names: ToolNames, origin: dict[str, str]) -> None:
        self._names = names
        self._origin = origin
        self._calls: list[_OpenCall] = []
        self._at: dict[int, _OpenCall] = {}
        """Index → the last call that has it."""
        self._ids: dict[tuple[int | None, str], _OpenCall] = {}
        """(index, id) → the first call that has them; without an index, the last one with that id."""
        self._nameless: _OpenCall | None = None
        """The last call without an id."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def push(self, fragment: CallDelta) -> list[Chunk]:
        function = fragment.function
        name = (function.name if function else None) or ""
        raw = function.arguments if function else None
        args = raw if isinstance(raw, str) else "" if raw is None else encode(raw).decode()
        if fragment.id == "null":  # Mistral's word for no id
            fragment.id = None
        call = self._find(fragment, name, args) or self._open(fragment)
        if fragment.id and not call.id:
            self._name(call, fragment.id)
        if name and name != call.name and not call.started:
            call.name += name
        if fragment.extra_content:
            call.extra = fragment.extra_content
        if args:
            call.args.append(args)
        if call.started:
            return [CallArgs(tool_call_id=call.key, args_text_delta=args)] if args else []
        if not call.name or (not call.args and self._names.is_begun(call.name)):
            return []  # its arguments wait for the name
        return self._start(call)

    def _open(self, fragment: CallDelta) -> _OpenCall:
        call = _OpenCall(len(self._calls), fragment.index, "")
        self._calls.append(call)
        if fragment.index is not None:
            self._at[fragment.index] = call
        self._nameless = call
        return call

    def _name(self, call: _OpenCall, given: str) -> None:
        call.id = given
        self._ids.setdefault((call.index, given), call)
        self._ids[None, given] = call
        if self._nameless is call:
            self._nameless = None

    def _start(self, call: _OpenCall) -> list[Chunk]:
        call.started = True
        call.told = self._data(call)
        name = self._names.ours(call.name)
        chunks: list[Chunk] = [CallStart(tool_call_id=call.key, tool_name=name, provider_data=call.told)]
        if call.args:
            chunks.append(CallArgs(tool_call_id=call.key, args_text_delta="".join(call.args)))
        return chunks

    def end(self, *, whole: bool = True) -> list[Chunk]:
        """No more comes. Calls of an answer that was cut are not ``whole`` and get no end."""
        chunks: list[Chunk] = []
        for call in self._calls:
            if not call.name:
                raise AgentError(
                    "ModelProtocolError", f"a tool call ({call.id or 'without id'}) has no tool name"
                )
            if not call.started:
                chunks += self._start(call)
        for call in self._calls if whole else ():
            data = self._data(call)  # told again when more came after the start
            chunks.append(CallEnd(tool_call_id=call.key, provider_data=None if data == call.told else data))
        return chunks

    def all_parse(self) -> bool:
        return all(_is_whole(call.args) for call in self._calls)

    def _find(self, fragment: CallDelta, name: str, args: str) -> _OpenCall | None:
        """The call that ``fragment`` continues; None when it begins one."""
        if fragment.index is not None:
            call = self._at.get(fragment.index)
        elif fragment.id:
            known = (self._ids.get((None, fragment.id)), self._nameless)
            call = max(filter(None, known), key=lambda one: one.number, default=None)
        else:
            call = self._calls[-1] if self._calls else None
        if call is None:
            return None
        if fragment.id and call.id and fragment.id != call.id:
            # An index that serves several calls: this one may have been open before.
            return self._ids.get((fragment.index, fragment.id))
        if name and call.name and name != call.name:
            grows = not call.started and not call.args and self._names.is_begun(call.name)
            return call if grows else None
        begins = name or fragment.id
        if begins and args.lstrip()[:1] == "{" and _is_whole(call.args):
            return None
        if begins and fragment.index is None and not fragment.id and not args and call.args:
            return None
        return call

    def _data(self, call: _OpenCall) -> dict[str, Any] | None:
        if not call.id and call.extra is None:
            return None
        if call.extra is None:
            return {"origin": self._origin["origin"], "id": call.id}
        data = {**self._origin, "extra_content": call.extra}
        if call.id:
            data["id"] = call.id
        return data


def _is_whole(args: list[str]) -> bool:
    if not args or not args[-1].rstrip().endswith("}"):
        return False
    try:
        return isinstance(json.loads("".join(args)), dict)
    except (ValueError, RecursionError):
        return False


_OPEN, _CLOSE = "<think>", "</think>"


class ThinkSplitter:
    """Takes the thoughts at the start of an answer apart from what follows, across any cuts."""

    def __init__(self) -> None:
        self._state: Literal["before", "inside", "gap", "after"] = "before"
        self._held: str = ""

    def push(self, text: str) -> list[TextChunk | ThinkingChunk]:
        if self._state == "after":
            return [TextChunk(text_delta=text)]
        if self._state == "gap":  # the blank lines between thought and answer belong to neither
            text = text.lstrip("\n")
            if text:
                self._state = "after"
            return [TextChunk(text_delta=text)] if text else []
        text = self._held + text
        self._held = ""
        if self._state == "before":
            start = text.lstrip()
            if len(start) < len(_OPEN) and _OPEN.startswith(start):
                self._held = text
                return []
            if not start.startswith(_OPEN):
                self._state = "after"
                return [TextChunk(text_delta=text)]
            self._state = "inside"
            text = start[len(_OPEN) :]
        thought, found, rest = text.partition(_CLOSE)
        if found:
            rest = rest.lstrip("\n")
            self._state = "after" if rest else "gap"
            chunks: list[TextChunk | ThinkingChunk] = [ThinkingChunk(text_delta=thought)] if thought else []
            return [*chunks, TextChunk(text_delta=rest)] if rest else chunks
        keep = _overlap(text)
        self._held = text[len(text) - keep :]
        thought = text[: len(text) - keep]
        return [ThinkingChunk(text_delta=thought)] if thought else []

    def end(self) -> list[TextChunk | ThinkingChunk]:
        held, self._held = self._held, ""
        if not held:
            return []
        return [ThinkingChunk(text_delta=held) if self._state == "inside" else TextChunk(text_delta=held)]


def _overlap(text: str) -> int:
    """How much of the end of ``text`` may be the beginning of the closing tag."""
    for size in range(min(len(_CLOSE) - 1, len(text)), 0, -1):
        if _CLOSE.startswith(text[-size:]):
            return size
    return 0
