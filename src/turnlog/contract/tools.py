"""Tool specifications and the typed views of calls, results and usage."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec.structs import force_setattr

from ._base import FILLED_IN, JsonObject, Value, thaw
from .messages import ToolCall

ToolStatus: TypeAlias = Literal["success", "failed", "skipped", "denied", "unknown"]

RECALL = "recall"
"""Name of the built-in tool that brings back what was folded: ``entry`` by its number, ``query`` by words."""

READ_ARTIFACT = "read_artifact"
"""Name of the built-in tool that reads an output that was kept apart."""


FINAL_ANSWER = "final_answer"
"""Name of the tool that a model gives its structured output with, where its provider takes no schema."""


class ToolSpec(Value, frozen=True, kw_only=True):
    """What a model is told of a tool. Never carries anything needed to run it."""

    name: str
    description: str = FILLED_IN
    parameter_schema: JsonObject
    strict: bool | None = None

    def __post_init__(self) -> None:
        if self.description is FILLED_IN:
            force_setattr(self, "description", "")


class SpecificTool(Value, frozen=True, kw_only=True):
    name: str


ToolChoice: TypeAlias = Literal["auto", "required", "none"] | SpecificTool
"""How free the model is: ``auto``, ``required`` (some tool), ``none``, or one named tool."""


class ToolCallRequest(Value, frozen=True, kw_only=True):
    """A call as code that runs it sees it."""

    tool_name: str
    tool_call_id: str
    raw_arguments: str
    arguments: JsonObject | None = None
    parse_error: str | None = None
    parse_warning: str | None = None


class ToolCallResult(Value, frozen=True, kw_only=True):
    """What came of a call. ``result`` is the ordered sections of its live grain."""

    tool_name: str
    tool_call_id: str
    status: ToolStatus
    result: list[tuple[str, str]]
    elapsed: float | None = None


class TokenUsage(Value, frozen=True, kw_only=True):
    """Cumulative counts of one model call, or sums over several. ``cost`` is in US dollars, when known.

    ``input_tokens`` counts all input, cached or not; ``cached_input_tokens`` and ``cache_write_tokens``
    are shares of it.
    """

    input_tokens: int
    output_tokens: int
    total_tokens: int
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: float | None = None

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cached_input_tokens=_sum(self.cached_input_tokens, other.cached_input_tokens),
            cache_write_tokens=_sum(self.cache_write_tokens, other.cache_write_tokens),
            reasoning_tokens=_sum(self.reasoning_tokens, other.reasoning_tokens),
            cost=_sum(self.cost, other.cost),
        )


def _sum(left: Any, right: Any) -> Any:
    if left is None:
        return right
    return left if right is None else left + right


def request_of(call: ToolCall, parse_error: str | None = None) -> ToolCallRequest:
    """The typed view of a recorded call. Its arguments are a copy, which a tool may change."""
    return ToolCallRequest(
        tool_name=call.tool_name,
        tool_call_id=call.tool_call_id,
        raw_arguments=call.raw_args_text,
        arguments=thaw(call.arguments),
        parse_error=parse_error or ("the arguments did not parse" if call.arguments is None else None),
    )
