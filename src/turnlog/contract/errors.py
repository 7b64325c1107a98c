"""The one error type that leaves the library, and the table of its codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from ._secrets import scrub, scrub_json

if TYPE_CHECKING:
    from .run import RunResult

Category: TypeAlias = Literal["model", "tool", "runtime", "session", "context", "loop", "value", "config"]


class CodeInfo(NamedTuple):
    category: Category
    retryable: bool


def _codes(category: Category, *names: str, retryable: bool = False) -> dict[str, CodeInfo]:
    return {name: CodeInfo(category, retryable) for name in names}


CODES: Mapping[str, CodeInfo] = {
    **_codes(
        "model",
        "ModelTimeout",
        "ModelUnreachable",
        "ModelRateLimited",
        "ModelOverloaded",
        "ModelServerError",
        "ModelProtocolError",
        retryable=True,
    ),
    **_codes(
        "model",
        "ModelAuthError",
        "ModelQuotaExceeded",
        "ModelNotFound",
        "ModelContextOverflow",
        "ModelBadRequest",
        "ModelContentFiltered",
        "ModelRefused",
        "ModelUnknownError",
    ),
    **_codes(
        "tool",
        "ToolNotFound",
        "ToolInvalidArgs",
        "ToolTimeout",
        "ToolDenied",
        "ToolExecutionError",
        "ToolCancelled",
        "ToolOutcomeUnknown",
        "ToolCallLimit",
    ),
    **_codes(
        "runtime",
        "RuntimeNotReady",
        "RuntimeUnavailable",
        "RuntimePermissionDenied",
        "RuntimeSandboxViolation",
        "RuntimeExecutionError",
    ),
    **_codes("session", "SessionConcurrentWrite", "SessionBusy", retryable=True),
    **_codes(
        "session",
        "SessionNotFound",
        "SessionWriteFailed",
        "SessionReadFailed",
        "SessionMigrationFailed",
        "SessionCorrupt",
    ),
    **_codes("context", "ContextOverflow", "ContextCompactionFailed", "ContextInvalidInput"),
    **_codes(
        "loop",
        "RunAborted",
        "RunTimeout",
        "RunMaxIterations",
        "RunMaxToolRounds",
        "RunTokenLimit",
        "RunCostLimit",
        "RunStalled",
        "IllegalTransition",
        "OutputInvalid",
        "OutputTruncated",
        "HookFailed",
        "ReplayMismatch",
        "ApprovalExpired",
        "ApprovalInvalid",
        "ModelEmptyOutput",
    ),
    **_codes("value", "InvalidMessage", "InvalidEntry", "MetaTooLarge", "UnknownKind"),
    **_codes("config", "ConfigInvalid", "PluginMissing"),
}
"""Every code, its category, and whether trying again may help. Codes are stable: clients branch on them."""


class ErrorInfo(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """An error as a value: what entries, events and results carry. The cause never does."""

    code: str
    message: str
    retryable: bool
    category: str
    meta: dict[str, Any] | None = None


class AgentError(Exception):
    """What went wrong, to which thing, and what to do next.

    ``cause`` is for debugging: it never reaches a model, a log entry or an end user. ``result`` is there when
    a run ended this way. Guarded secrets are cut out of message and meta.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool | None = None,
        cause: BaseException | None = None,
        meta: Mapping[str, Any] | None = None,
        result: RunResult | None = None,
    ) -> None:
        info = CODES.get(code)
        if info is None:
            raise ValueError(f"unknown error code {code!r}; codes are listed in turnlog.contract.CODES")
        message = scrub(message)
        super().__init__(message)
        self.code = code
        self.message = message
        self.category: Category = info.category
        self.retryable = info.retryable if retryable is None else retryable
        self.cause = cause
        self.result = result
        self.meta: dict[str, Any] = scrub_json(dict(meta or {}))
        if cause is not None:
            self.__cause__ = cause

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __repr__(self) -> str:
        return f"AgentError({self.code!r}, {self.message!r}, retryable={self.retryable})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.code, self.message, self.retryable, self.meta, self.result))

    @property
    def retry_after(self) -> float | None:
        """Seconds the other side asked us to wait, when it did."""
        found = self.meta.get("retry_after")
        return float(found) if isinstance(found, int | float) else None

    def to_info(self) -> ErrorInfo:
        return ErrorInfo(
            code=self.code,
            message=self.message,
            retryable=self.retryable,
            category=self.category,
            meta=self.meta or None,
        )

    @classmethod
    def from_info(cls, info: ErrorInfo) -> AgentError:
        code = info.code if info.code in CODES else "ModelUnknownError"
        return cls(code, info.message, retryable=info.retryable, meta=info.meta)


def _rebuild(
    code: str, message: str, retryable: bool, meta: dict[str, Any], result: RunResult | None
) -> AgentError:
    return AgentError(code, message, retryable=retryable, meta=meta, result=result)
