"""Structured output in a run: how the model is asked for it, its answers checked, and shown."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET

from turnlog import events
from turnlog.contract import (
    FINAL_ANSWER,
    AgentError,
    Feature,
    JsonObject,
    JsonValue,
    ModelInputEntry,
    OutputMode,
    RunEvent,
    RunStarted,
    ToolSpec,
    encode,
)
from turnlog.history import CallState, SessionState
from turnlog.tools import OutputType, Problems, ToolAnswer, check_schema, parse_answer

from ._decide import output_invalid
from ._ports import Accepted, Rejected, Said
from ._tape import Tape

T = TypeVar("T")

_FORMAT = "Output format"
"""Title of the section that shows a model the schema, where nothing else does."""


# ── asking for it ──


def read_output_type(given: Any, default: OutputType[Any] | None = None) -> OutputType[Any] | None:
    """The output type of a run; None for text, which needs no checking. Raises ``ConfigInvalid`` for a type
    that has no JSON schema."""
    if given is None:
        return default
    if given is str:
        return None
    return cast("OutputType[Any]", given) if isinstance(given, OutputType) else OutputType(given)


def choose_mode(output: OutputType[Any], supports: Callable[[Feature], bool]) -> OutputMode:
    """The surest way that this model has."""
    if output.type is str:
        return "text"  # words are what a model answers with
    if supports("output_schema"):
        return "schema"
    return "tool" if supports("tools") else "text"


def show_format(said: Said, output: OutputType[Any]) -> Said:
    """The message, and behind it the schema that its answer must fit."""
    if output.type is str:
        return said
    schema = encode(output.json_schema).decode()
    words = f"Answer with one JSON value that fits this JSON schema, and nothing else:\n{schema}"
    return msgspec.structs.replace(said, sections=[*said.sections, (_FORMAT, words)])


def final_tool(started: RunStarted) -> ToolSpec:
    return ToolSpec(
        name=FINAL_ANSWER,
        description="Give the final answer. Call this once, alone, when you know everything it needs.",
        parameter_schema=started.output_schema or {"type": "object"},
    )


def is_final(call: CallState, state: SessionState) -> bool:
    """Whether the model gives its structured output with this call."""
    started = state.started
    return call.call.tool_name == FINAL_ANSWER and started is not None and started.output_mode == "tool"


def check_resumed(state: SessionState, output: OutputType[Any] | None) -> None:
    """What a run is asked for is in its log: raises ``ConfigInvalid`` when it was not asked for an output."""
    if output is not None and state.started is not None and state.started.output_mode is None:
        raise AgentError(
            "ConfigInvalid",
            f"run {state.run_id} was started without an output type and will end with text; resume it with "
            "output_type=str, or start another run",
        )


# ── reading it ──


def _answer_in(state: SessionState) -> JsonValue:
    """What the run ended with: the arguments of the final call, a tool's result, or the answer's text."""
    if state.final is not None:
        call = state.calls[state.final[0]]
        return call.call.arguments if is_final(call, state) else state.final[1]
    return state.output.payload.message.text if state.output is not None else ""


def output_in(state: SessionState) -> Any:
    """The output of the newest run as plain JSON, as its log has it; UNSET where there is none."""
    started = state.started
    if started is None or state.status != "completed":
        return UNSET
    if started.output_mode is None:
        return UNSET if state.final is None else state.final[1]
    answer = _answer_in(state)
    if started.output_schema is None or not isinstance(answer, str):
        return _unwrapped(answer, started.output_field)
    value, problem = parse_answer(answer)
    return answer if problem is not None else _unwrapped(value, started.output_field)


def _unwrapped(value: Any, field: str | None) -> Any:
    return value[field] if _is_wrapped(value, field) else value


def _is_wrapped(value: Any, field: str | None) -> bool:
    return isinstance(value, dict) and list(cast("JsonObject", value)) == [field]


class LiveOutput:
    """Checks answers against the type that the run was given; where a run is resumed without it, against the
    schema that the log has."""

    def __init__(self, given: OutputType[Any] | None) -> None:
        self._given = given
        self._known: tuple[str, Any] | None = None
        """The call that was accepted last, and its value."""

    async def check(self, state: SessionState, *, last: bool) -> Accepted | Rejected:
        started = state.started
        assert started is not None
        if state.final is not None and self._known is not None and self._known[0] == state.final[0]:
            return Accepted(self._known[1])
        found = await self._checked(_answer_in(state), started)
        if not isinstance(found, Problems):
            return Accepted(found)
        if last:
            return Rejected("", output_invalid(state.corrections, "; ".join(found.errors)))
        if started.output_mode == "tool":
            again = f"Call {FINAL_ANSWER} with the output; text alone is not taken."
            return Rejected(found.told(again))
        plain = self._given is not None and self._given.type is str
        return Rejected(found.told("Answer again.") if plain else found.correction)

    async def answer(self, call: CallState, state: SessionState) -> ToolAnswer:
        """The result of the final call."""
        assert state.started is not None
        if call.parse_error is not None or call.call.arguments is None:
            found = Problems((call.parse_error or "the arguments did not parse",))
        else:
            found = await self._checked(call.call.arguments, state.started)
        if isinstance(found, Problems):
            words = found.told(f"Call {FINAL_ANSWER} again with arguments that fit its schema.")
            return ToolAnswer.failed("OutputInvalid", words)
        self._known = (call.call.tool_call_id, found)
        return ToolAnswer(status="success", content="Accepted.", ends_run=True)

    async def _checked(self, answer: JsonValue, started: RunStarted) -> Any:
        output = self._given
        if output is None:
            return _by_schema(answer, started.output_schema, started.output_field)
        try:
            return await output.checked({output.field or "": answer} if output.type is str else answer)
        except AgentError:
            raise
        except Exception as error:
            raise AgentError(
                "HookFailed",
                f"the check of output type {output.name} raised {type(error).__name__}: {error}",
                cause=error,
            ) from error


def _by_schema(answer: JsonValue, schema: JsonObject | None, field: str | None) -> Any:
    if schema is None:
        return answer
    value: Any = answer
    if isinstance(answer, str):
        value, problem = parse_answer(answer)
        if problem is not None and field is None:
            return Problems((problem,))
        value = answer if problem is not None else value
    if field is not None and not _is_wrapped(value, field):
        value = {field: value}
    errors = check_schema(schema, value)
    return Problems(tuple(errors)) if errors else _unwrapped(value, field)


class RecordedOutput:
    """What a check said is read off the log: it may have looked at things outside."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    async def check(self, state: SessionState, *, last: bool) -> Accepted | Rejected:
        entry = self._tape.peek()
        if isinstance(entry, ModelInputEntry) and entry.payload.source == "correction" and not last:
            return Rejected(entry.payload.message.text)
        end = self._tape.ending
        if end is None:
            self._tape.stop()
        if end.error is not None and end.error.code == "OutputInvalid" and last:
            return Rejected("", end.error)
        return Accepted(UNSET)


# ── while it is being written ──


async def partial_values(
    source: AsyncIterator[RunEvent], output: OutputType[T] | None, final: Callable[[], T | None]
) -> AsyncGenerator[T, None]:
    """The output as far as it has come, each time it has grown; at last the checked one, where there is one.
    Without an output type it is the text so far."""
    text, call_id, shown = "", "", None
    async for event in source:
        match event:
            case events.ModelCalled():
                text, call_id = "", ""  # a correction, or another try: what was shown does not count
                continue
            case events.TextDelta() if not call_id:
                text += event.text
            case events.ToolCallDelta() if event.tool_name == FINAL_ANSWER:
                text, call_id = "", event.tool_call_id
                continue
            case events.ToolCallDelta() if event.tool_call_id == call_id:
                text += event.arguments_text
            case events.RunEnded():
                value = final()
                if value is not None and value != shown:
                    yield value
                continue
            case _:
                continue
        value: Any = text if output is None or output.type is str else output.partial(text)
        if value is not None and value != shown:
            shown = value
            yield value
