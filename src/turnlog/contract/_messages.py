"""One finished message: a role and its ordered parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

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


def user_message(text: str | Sequence[MessagePart], *, run_id: str = "", timestamp: str = "") -> Message:
    """A user's message; run id and timestamp are filled in by whoever appends it."""
    if not isinstance(text, str | list | tuple):
        raise AgentError(
            "InvalidMessage", f"a user's message is text or a list of parts, not a {type(text).__name__}"
        )
    parts: list[MessagePart] = [text_part(text)] if isinstance(text, str) else list(text)
    return Message(run_id=run_id, role="user", parts=parts, timestamp=timestamp)
