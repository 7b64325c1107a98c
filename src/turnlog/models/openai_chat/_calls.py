"""Fragments of tool calls, put to the call they belong to, however a server numbers them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from turnlog.contract import AgentError, CallArgs, CallEnd, CallStart, Chunk, encode

from .._history import ToolNames
from ._chunks import CallDelta


@dataclass(slots=True)
class _OpenCall:
    key: str
    index: int | None
    id: str
    name: str = ""
    extra: dict[str, Any] | None = None
    args: list[str] = field(default_factory=list[str])
    told: dict[str, Any] | None = None
    started: bool = False


class CallTable:
    """Servers leave out indexes or use one for all calls, leave out ids, repeat names and ids in every
    fragment, send a call whole or twice. A fragment goes on with the call it names, unless it says that
    it is another one: a new id, a new name, or new arguments after complete ones."""

    __slots__ = ("_calls", "_names", "_origin")

    def __init__(self, names: ToolNames, origin: dict[str, str]) -> None:
        self._names = names
        self._origin = origin
        self._calls: list[_OpenCall] = []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def push(self, fragment: CallDelta) -> list[Chunk]:
        function = fragment.function
        name = (function.name if function else None) or ""
        raw = function.arguments if function else None
        args = raw if isinstance(raw, str) else "" if raw is None else encode(raw).decode()
        call = self._find(fragment, name, args)
        if call is None:
            call = _OpenCall(f"c{len(self._calls)}", fragment.index, fragment.id or "")
            self._calls.append(call)
        if fragment.id and not call.id:
            call.id = fragment.id
        if name and not call.name:
            call.name = name
        if fragment.extra_content:
            call.extra = fragment.extra_content
        if call.started:
            if not args:
                return []
            call.args.append(args)
            return [CallArgs(tool_call_id=call.key, args_text_delta=args)]
        if args:
            call.args.append(args)
        if not call.name:
            return []  # its arguments wait for the name
        call.started = True
        call.told = self._data(call)
        name = self._names.ours(call.name)
        chunks: list[Chunk] = [CallStart(tool_call_id=call.key, tool_name=name, provider_data=call.told)]
        if call.args:
            chunks.append(CallArgs(tool_call_id=call.key, args_text_delta="".join(call.args)))
        return chunks

    def end(self) -> list[Chunk]:
        """All calls are complete."""
        for call in self._calls:
            if not call.started:
                raise AgentError(
                    "ModelProtocolError", f"a tool call ({call.id or 'without id'}) has no tool name"
                )
        ends: list[Chunk] = []
        for call in self._calls:
            data = self._data(call)  # told again when more came after the start
            ends.append(CallEnd(tool_call_id=call.key, provider_data=None if data == call.told else data))
        return ends

    def all_parse(self) -> bool:
        return all(_is_whole("".join(call.args)) for call in self._calls)

    def _find(self, fragment: CallDelta, name: str, args: str) -> _OpenCall | None:
        """The call that ``fragment`` goes on with; None when it begins one."""
        candidates = self._calls
        if fragment.index is not None:
            candidates = [call for call in candidates if call.index == fragment.index]
        elif fragment.id:
            candidates = [call for call in candidates if call.id in ("", fragment.id)]
        if not candidates:
            return None
        call = candidates[-1]
        if fragment.id and call.id and fragment.id != call.id:
            # An index that serves several calls: this one may have been open before.
            return next((other for other in candidates if other.id == fragment.id), None)
        if name and call.name and name != call.name:
            return None
        begins = name or fragment.id
        if begins and call.args and args.lstrip()[:1] == "{" and _is_whole("".join(call.args)):
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


def _is_whole(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
