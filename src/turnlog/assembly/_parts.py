"""Parts under construction: fragments are only ever added, so a snapshot can share them."""

from __future__ import annotations

from typing import Literal

from turnlog.contract import (
    JsonObject,
    MessagePart,
    ToolCall,
    ToolCallPart,
    parse_arguments,
    text_part,
    thinking_part,
)


class PartBuilder:
    __slots__ = ("call_id", "closed", "fragments", "kind", "name", "provider_data")

    def __init__(
        self, kind: Literal["text", "thinking", "tool_call"], *, call_id: str = "", name: str = ""
    ) -> None:
        self.kind: Literal["text", "thinking", "tool_call"] = kind
        self.call_id = call_id
        self.name = name
        self.fragments: list[str] = []
        self.provider_data: JsonObject | None = None
        self.closed = False

    def build(self, length: int | None = None) -> tuple[MessagePart, str | None]:
        """The part made of the first ``length`` fragments, and what its arguments' parse complained of."""
        text = "".join(self.fragments if length is None else self.fragments[:length])
        match self.kind:
            case "text":
                return text_part(text, self.provider_data), None
            case "thinking":
                return thinking_part(text, self.provider_data), None
            case "tool_call":
                parsed = parse_arguments(text)
                call = ToolCall(
                    tool_call_id=self.call_id,
                    tool_name=self.name,
                    arguments=parsed.arguments,
                    raw_args_text=text,
                    provider_data=self.provider_data,
                )
                return ToolCallPart(payload=call), parsed.error
