"""The rules of a delta stream, as a table. ``Model.stream`` runs every adapter's output through it."""

from __future__ import annotations

from typing import Literal, TypeAlias

StreamState: TypeAlias = Literal["idle", "streaming", "ended"]

GRAMMAR: dict[tuple[str, str], StreamState] = {
    ("idle", "start"): "streaming",
    ("streaming", "text"): "streaming",
    ("streaming", "thinking"): "streaming",
    ("streaming", "tool_call_start"): "streaming",
    ("streaming", "tool_call_args"): "streaming",
    ("streaming", "tool_call_end"): "streaming",
    ("streaming", "usage"): "streaming",
    ("streaming", "done"): "ended",
    ("streaming", "error"): "ended",
}
"""(state, kind of delta) → next state. What is not here is a broken rule."""

_CALL_KINDS = frozenset({"tool_call_start", "tool_call_args", "tool_call_end"})

_WHY: dict[tuple[str, str], str] = {
    ("streaming", "start"): "a second start",
}


class DeltaGrammar:
    """Follows one stream. ``check`` says what a delta breaks, or None and moves on."""

    __slots__ = ("_calls", "_seq", "state")

    def __init__(self) -> None:
        self.state: StreamState = "idle"
        self._calls: dict[str, bool] = {}
        self._seq: int | None = None

    @property
    def open_calls(self) -> list[str]:
        return [call for call, is_open in self._calls.items() if is_open]

    def check(self, kind: str, call_id: str | None = None, seq: int | None = None) -> str | None:
        following = GRAMMAR.get((self.state, kind))
        if following is None:
            return self._explain(kind)
        if seq is not None:
            if self._seq is not None and seq <= self._seq:
                return f"seq {seq} after seq {self._seq}: it must increase"
            self._seq = seq
        if kind in _CALL_KINDS and (broken := self._check_call(kind, call_id)):
            return broken
        if kind == "done" and (unfinished := self.open_calls):
            return f"done while call {unfinished[0]} has no tool_call_end"
        self.state = following
        return None

    def _check_call(self, kind: str, call_id: str | None) -> str | None:
        if not call_id:
            return f"{kind} names no call"
        known = self._calls.get(call_id)
        if kind == "tool_call_start":
            if known is not None:
                return f"call {call_id} starts twice"
            self._calls[call_id] = True
        elif known is None:
            return f"{kind} for call {call_id}, which never started"
        elif not known:
            return f"{kind} for call {call_id}, which has ended"
        elif kind == "tool_call_end":
            self._calls[call_id] = False
        return None

    def _explain(self, kind: str) -> str:
        if self.state == "idle":
            return f"{kind} before start"
        if self.state == "ended":
            return f"{kind} after the stream ended"
        return _WHY.get((self.state, kind), f"{kind} is not a kind of delta")
