"""What came of a call, and the words in which a failure is told to a model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from turnlog.contract import (
    CODES,
    AgentError,
    FileRefPart,
    ImagePart,
    JsonObject,
    TextPart,
    ToolCallRequest,
    ToolCallResult,
    ToolResultPart,
    ToolStatus,
    WidgetEvent,
    encode,
    text_part,
    tool_result_part,
)

from ._text import clean, shorten

ResultPart: TypeAlias = TextPart | ImagePart | FileRefPart
Content: TypeAlias = str | JsonObject | list[ResultPart]

_MESSAGE_LIMIT = 4000


class ToolError(Exception):
    """Raised by a tool's author to tell the model, in these words, what went wrong.

    ``retryable`` says that the same call may work a moment later: an idempotent tool with ``retries`` is
    then run again.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "ToolExecutionError",
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        if code not in CODES:
            raise ValueError(f"unknown error code {code!r}; codes are listed in turnlog.contract.CODES")
        super().__init__(message)
        self.message = message
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after


@dataclass(frozen=True)
class ToolResult:
    """A result with its shorter grains: ``live`` is shown now, ``summary`` and ``gist`` once it is folded.

    ``is_error`` marks a failure that is not an exception; ``artifact`` is kept apart for reading on.
    """

    live: Any
    summary: str | None = None
    gist: str | None = None
    is_error: bool = False
    artifact: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class ToolAnswer:
    """What came of one call, ready for the log.

    ``artifact`` holds the whole output when ``content`` shows only a part of it; who stores it tells the
    model where with :meth:`noted` and puts its name into ``kept_as``. ``cause`` is for debugging and never
    reaches a model or the log.
    """

    status: ToolStatus
    content: Content
    error_code: str | None = None
    elapsed_ms: int | None = None
    summary: str | None = None
    gist: str | None = None
    artifact: bytes | None = None
    kept_as: str | None = None
    events: list[WidgetEvent] = field(default_factory=list[WidgetEvent])
    retryable: bool = False
    cause: BaseException | None = field(default=None, repr=False, compare=False)

    @property
    def is_error(self) -> bool:
        return self.status != "success"

    @classmethod
    def failed(
        cls, code: str, text: str, *, retryable: bool = False, cause: BaseException | None = None
    ) -> ToolAnswer:
        return cls(status="failed", content=clean(text), error_code=code, retryable=retryable, cause=cause)

    @classmethod
    def denied(cls, text: str) -> ToolAnswer:
        return cls(status="denied", content=clean(text), error_code="ToolDenied")

    @classmethod
    def skipped(cls, text: str, code: str = "ToolCancelled") -> ToolAnswer:
        return cls(status="skipped", content=clean(text), error_code=code)

    @classmethod
    def unknown(cls, tool_name: str) -> ToolAnswer:
        """For a call that started before a crash and left no result."""
        return cls(
            status="unknown",
            content=f"Outcome unknown: {tool_name!r} was started, and the process ended before its result "
            "was recorded. It may or may not have had its effect. Look at the actual state before calling "
            "it again.",
            error_code="ToolOutcomeUnknown",
        )

    @property
    def text(self) -> str:
        """The content as plain text; images and files as short notes."""
        match self.content:
            case str():
                return self.content
            case dict():
                return encode(self.content).decode()
            case list():
                return "\n".join(_part_text(part) for part in self.content)

    def noted(self, note: str) -> ToolAnswer:
        """Self with a line added at the end of what the model sees."""
        match self.content:
            case str():
                return replace(self, content=f"{self.content}\n\n{note}" if self.content else note)
            case dict():
                return replace(self, content=[text_part(self.text), text_part(note)])
            case list():
                return replace(self, content=[*self.content, text_part(note)])

    def to_part(self, tool_call_id: str) -> ToolResultPart:
        return tool_result_part(tool_call_id, self.content, is_error=self.is_error)

    def to_result(self, call: ToolCallRequest) -> ToolCallResult:
        """The typed view of M-6."""
        return ToolCallResult(
            tool_name=call.tool_name,
            tool_call_id=call.tool_call_id,
            status=self.status,
            result=[("", self.text)],
            elapsed=None if self.elapsed_ms is None else self.elapsed_ms / 1000,
        )


def _part_text(part: ResultPart) -> str:
    match part:
        case TextPart():
            return part.payload.text
        case ImagePart():
            return f"[image {part.payload.mime_type}]"
        case FileRefPart():
            return f"[file {part.payload.path}]"


def failure(tool_name: str, error: BaseException) -> ToolAnswer:
    """What an exception out of a tool's body tells the model: type and message, never a traceback."""
    match error:
        case ToolError():
            return ToolAnswer.failed(
                error.code, shorten(_message(error), _MESSAGE_LIMIT), retryable=error.retryable, cause=error
            )
        case AgentError():
            return ToolAnswer.failed(
                error.code, shorten(error.message, _MESSAGE_LIMIT), retryable=error.retryable, cause=error
            )
        case asyncio.CancelledError():
            return ToolAnswer.failed(
                "ToolCancelled", f"{tool_name!r} stopped itself before it had a result", cause=error
            )
        case SystemExit() | KeyboardInterrupt():
            words = f"{tool_name!r} tried to end the program ({_named(error)}); it has no result"
        case BaseExceptionGroup():
            leaves = _leaves(error)
            words = f"{len(leaves)} errors: " + "; ".join(_named(leaf) for leaf in leaves[:10])
        case _:
            words = _named(error)
    return ToolAnswer.failed("ToolExecutionError", shorten(words, _MESSAGE_LIMIT), cause=error)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            found.extend(_leaves(cast("BaseExceptionGroup[BaseException]", error)))
        else:
            found.append(error)
    return found


def _named(error: BaseException) -> str:
    message = _message(error)
    name = type(error).__name__
    return f"{name}: {message}" if message else name


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an exception whose own __str__ fails
        return ""


def in_words(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) if names else "none"
