"""Fragments of tool calls, put to the call they belong to, however a server numbers them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from turnlog.contract import AgentError, CallArgs, CallEnd, CallStart, Chunk, encode

from ..wire import ToolNames
from ._chunks import CallDelta


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
    fragment, cut names in pieces, send a call whole or twice. A fragment goes on with the call it names,
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
        """The call that ``fragment`` goes on with; None when it begins one."""
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
