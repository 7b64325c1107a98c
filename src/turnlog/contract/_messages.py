"""One finished message: a role and its ordered parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal, TypeAlias, cast, overload

from ._base import JsonObject, Value, check_meta
from ._errors import AgentError
from ._parts import (
    FileRefPart,
    ImagePart,
    MessagePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    text_part,
)

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]

ROLE_PARTS: dict[str, frozenset[str]] = {
    "system": frozenset({"text", "thinking"}),
    "user": frozenset({"text", "image", "file_ref"}),
    "assistant": frozenset({"text", "thinking", "tool_call"}),
    "tool": frozenset({"tool_result"}),
}
"""Which parts a role may hold. The one place that says so."""


_PARTS = (TextPart, ThinkingPart, ToolCallPart, ToolResultPart, ImagePart, FileRefPart)


class Message(Value, frozen=True, kw_only=True):
    run_id: str
    role: Role
    parts: list[MessagePart]
    timestamp: str
    meta: JsonObject | None = None

    def __post_init__(self) -> None:
        allowed = ROLE_PARTS.get(self.role)
        if allowed is None:
            raise AgentError(
                "InvalidMessage", f"role {self.role!r} does not exist; roles are {', '.join(ROLE_PARTS)}"
            )
        for index, part in enumerate(self.parts):
            if type(part) not in _PARTS and not isinstance(part, _PARTS):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise AgentError(
                    "InvalidMessage",
                    f"part {index} of a {self.role} message is a {type(part).__name__}, not a message part; "
                    "text_part(...) makes one of text",
                )
            if part.kind not in allowed:
                raise AgentError(
                    "InvalidMessage",
                    f"a {self.role} message cannot hold a {part.kind} part (part {index}); "
                    f"it may hold {', '.join(sorted(allowed))}",
                    meta={"role": self.role, "part": part.kind, "index": index},
                )
        if self.meta:
            check_meta(self.meta, f"{self.role} message")

    @property
    def text(self) -> str:
        """All text parts joined: what a person would read."""
        return "".join(part.payload.text for part in self.parts if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> list[ToolCallPart]:
        return [part for part in self.parts if part.kind == "tool_call"]  # pyright: ignore[reportReturnType]

    @property
    def tool_results(self) -> list[ToolResultPart]:
        return [part for part in self.parts if part.kind == "tool_result"]  # pyright: ignore[reportReturnType]


class MessageView(Sequence[Message]):
    """The first messages of a list that only grows, read-only. It costs the same at any length, and stays as
    it is while the list goes on growing."""

    __slots__ = ("_count", "_grown")

    def __init__(self, grown: list[Message], count: int | None = None) -> None:
        self._grown = grown
        self._count = len(grown) if count is None else min(count, len(grown))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        return islice(self._grown, self._count)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            places = range(self._count)[index]
            if places.start == 0 and places.step == 1:
                return MessageView(self._grown, len(places))
            return tuple([self._grown[place] for place in places])
        return self._grown[range(self._count)[index]]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MessageView) and other._grown is self._grown:
            return self._count == other._count
        if not isinstance(other, MessageView | list | tuple):
            return NotImplemented
        return list(self) == list(cast("Sequence[object]", other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"MessageView({list(self)!r})"


def user_message(text: str | Sequence[MessagePart], *, run_id: str = "", timestamp: str = "") -> Message:
    """A user's message; run id and timestamp are filled in by whoever appends it."""
    if not isinstance(text, str | list | tuple):
        raise AgentError(
            "InvalidMessage", f"a user's message is text or a list of parts, not a {type(text).__name__}"
        )
    parts: list[MessagePart] = [text_part(text)] if isinstance(text, str) else list(text)
    return Message(run_id=run_id, role="user", parts=parts, timestamp=timestamp)
