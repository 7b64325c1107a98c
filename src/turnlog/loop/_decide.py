"""What is owed next, from the state alone. Pure: the runner performs it and appends what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TypeAlias

import msgspec

from turnlog.context import MAX_OVERFLOW_STEPS
from turnlog.contract import (
    FINAL_ANSWER,
    AgentError,
    Entry,
    ErrorInfo,
    LoopLimits,
    ModelCallFailedEntry,
    ModelCallStartedEntry,
    ModelOutputEntry,
    RetryPolicy,
    RunStarted,
    TokenUsage,
    ToolDeferredEntry,
    ToolResultsEntry,
    ToolStartedEntry,
)
from turnlog.history import CallState, SessionState

ABANDONED = "the process stopped before the answer was complete"
"""The error recorded for a model call that was open when its process died."""


class AbandonCall(msgspec.Struct, frozen=True):
    """A call was open when its process died: record that, then decide again."""


class CallModel(msgspec.Struct, frozen=True):
    index: int
    attempt: int
    delay_ms: int = 0


class ShrinkContext(msgspec.Struct, frozen=True):
    """The prompt did not fit: fold, at most three times."""

    step: int


class RunTools(msgspec.Struct, frozen=True):
    calls: tuple[CallState, ...]


class AwaitHuman(msgspec.Struct, frozen=True):
    """Nothing can be done before a human decides on ``calls``, or an answer comes from outside."""

    calls: tuple[CallState, ...]


class CheckOutput(msgspec.Struct, frozen=True):
    """The answer is there: see whether it fits the output type, and end the run or have it corrected; with
    ``last`` no correction is left."""

    last: bool


class EndRun(msgspec.Struct, frozen=True):
    error: ErrorInfo | None = None


class Nothing(msgspec.Struct, frozen=True):
    """No run, or none that is open."""


Effect: TypeAlias = (
    AbandonCall | CallModel | ShrinkContext | RunTools | AwaitHuman | CheckOutput | EndRun | Nothing
)


def decide(state: SessionState) -> Effect:
    if not state.is_open or state.started is None:
        return Nothing()
    if state.open_call is not None:
        return AbandonCall()
    if state.failure is not None:
        return _after_failure(state)
    if state.open_calls:
        if (refused := _check_rounds(state, state.started.limits)) is not None:
            return EndRun(refused)
        ready = tuple(call for call in state.open_calls if not call.waits)
        return RunTools(ready) if ready else AwaitHuman(tuple(state.awaiting))
    # A provider that paused its own work is asked to continue.
    paused = state.output is not None and state.output.payload.finish_reason == "pause"
    answered = state.output is not None and (not state.calls or state.final is not None) and not paused
    if answered and not state.input_pending:
        return EndRun() if state.started.output_mode is None else _check_output(state, state.started)
    if state.corrections > state.started.limits.max_corrections:
        problems = [line[2:] for line in state.rejection.splitlines() if line.startswith("- ")]
        return EndRun(output_invalid(state.corrections - 1, "; ".join(problems)))
    asked = state.input_pending or state.started.rerun is not None
    if state.output is None and not asked and not state.call_index:
        return EndRun(_error("ContextInvalidInput", "the run has no input to answer"))
    exceeded = check_limits(state, state.started.limits)
    if exceeded is not None:
        return EndRun(exceeded)
    return CallModel(state.call_index + 1, 1)


def _check_output(state: SessionState, started: RunStarted) -> Effect:
    """An answer that was stopped is never read as half of what was asked for."""
    reason = state.output.payload.finish_reason if state.output is not None else ""
    if state.final is None and reason in _UNFINISHED:
        said = state.output.payload.message.text.strip() if state.output is not None else ""
        return EndRun(unfinished(reason, said))
    return CheckOutput(last=state.corrections >= started.limits.max_corrections)


def unfinished(reason: str, said: str = "") -> ErrorInfo:
    """The end of a run whose typed answer was stopped: by its length, by the model or by the provider."""
    code, words = _UNFINISHED[reason]
    if said and reason == "refusal":
        words = f"{words}; it said: {said[:200]}"
    return AgentError(code, words, meta={"finish_reason": reason}).to_info()


_UNFINISHED = {
    "length": (
        "OutputTruncated",
        "the answer reached its length limit before the output was whole; raise max_tokens, or ask for less",
    ),
    "refusal": ("ModelRefused", "the model refused to give the output"),
    "content_filter": ("ModelContentFiltered", "the provider withheld a part of the answer"),
}


def output_invalid(corrections: int, problems: str) -> ErrorInfo:
    times = "1 correction" if corrections == 1 else f"{corrections} corrections"
    return _error(
        "OutputInvalid",
        f"after {times} the answer still does not fit the output type; raise LoopLimits.max_corrections, "
        f"simplify the type, or use another model. {problems}",
    )


def _after_failure(state: SessionState) -> Effect:
    failure = state.failure
    assert failure is not None
    if failure.error.code == "ModelContextOverflow":
        if state.folds_since_failure:
            return CallModel(failure.model_call_index, failure.attempt + 1)
        if state.overflow_steps <= MAX_OVERFLOW_STEPS:
            return ShrinkContext(state.overflow_steps)
        return EndRun(
            _error(
                "ContextOverflow",
                f"the prompt did not fit after {MAX_OVERFLOW_STEPS} folds: {failure.error.message}; "
                "use a model with a larger window, or shorten the system prompt and tools",
            )
        )
    if failure.retry_in_ms is not None:
        return CallModel(failure.model_call_index, failure.attempt + 1, failure.retry_in_ms)
    return EndRun(failure.error)


def check_limits(state: SessionState, limits: LoopLimits) -> ErrorInfo | None:
    """The limit the next model call would break, if any."""
    if limits.max_repeated_failures is not None and state.failures >= limits.max_repeated_failures:
        return _error(
            "RunStalled",
            f"{state.failing[0] if state.failing else 'a tool'} was called {state.failures} times in a row "
            "with the same arguments, and failed each time; change the tool, the prompt or the model, or "
            "raise LoopLimits.max_repeated_failures",
        )
    if state.call_index >= limits.max_iterations:
        return _error(
            "RunMaxIterations",
            f"the run made {state.call_index} model calls, its limit; raise LoopLimits.max_iterations",
        )
    usage = state.usage or TokenUsage(input_tokens=0, output_tokens=0, total_tokens=0)
    if limits.max_tokens is not None and usage.total_tokens >= limits.max_tokens:
        return _error(
            "RunTokenLimit",
            f"the run used {usage.total_tokens} tokens of {limits.max_tokens}; raise LoopLimits.max_tokens",
        )
    if limits.max_cost is not None and usage.cost is None and usage.total_tokens:
        model = state.target.model if state.target else "this model"
        return _error(
            "RunCostLimit",
            f"what {model} costs is not known, so the limit of ${limits.max_cost:.4f} cannot be kept; "
            "limit the run by LoopLimits.max_tokens instead",
        )
    if limits.max_cost is not None and usage.cost is not None and usage.cost >= limits.max_cost:
        return _error(
            "RunCostLimit",
            f"the run cost ${usage.cost:.4f} of ${limits.max_cost:.4f}; raise LoopLimits.max_cost",
        )
    return None


def _check_rounds(state: SessionState, limits: LoopLimits) -> ErrorInfo | None:
    """The limit that running the newest answer's calls would break: there is an answer to the last round."""
    if limits.max_tool_rounds is None or state.tool_rounds <= limits.max_tool_rounds:
        return None
    if all(call.call.tool_name == FINAL_ANSWER for call in state.open_calls):
        return None  # this is the answer to the last round
    return _error(
        "RunMaxToolRounds",
        f"the run used tools in {limits.max_tool_rounds} rounds, its limit, and asks for more; "
        "raise LoopLimits.max_tool_rounds",
    )


def time_spent(entries: Iterable[Entry], run_id: str) -> int:
    """Milliseconds that a run has spent on model calls, tools and waits between retries, from its log. Time
    in which it waited for a human, was paused, or nobody drove it does not count."""
    began, spans = dict[str, datetime](), list[tuple[datetime, datetime]]()
    for entry in entries:
        if entry.run_id != run_id:
            continue
        now, ended = datetime.fromisoformat(entry.timestamp), list[str]()
        match entry:
            case ModelCallStartedEntry():
                began["model"] = now
            case ModelOutputEntry():
                ended = ["model"]
            case ModelCallFailedEntry():
                failed = entry.payload
                if failed.error.message != ABANDONED:
                    ended = ["model"]
                spans.append((now, now + timedelta(milliseconds=failed.retry_in_ms or 0)))
            case ToolStartedEntry():
                began[entry.payload.tool_call_id] = now
            case ToolDeferredEntry():
                ended = [entry.payload.tool_call_id]
            case ToolResultsEntry():
                ended = [each.tool_call_id for each in entry.payload.outcomes if each.status != "unknown"]
            case _:
                pass
        spans += [(began.pop(name), now) for name in ended if name in began]
    return sum(int((end - start) / timedelta(milliseconds=1)) for start, end in _joined(spans))


def _joined(spans: list[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """The same time, without overlaps: tools run side by side."""
    joined = list[tuple[datetime, datetime]]()
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def plan_retry(error: ErrorInfo, attempt: int, policy: RetryPolicy, jitter: float) -> int | None:
    """Milliseconds to wait before the call is made again, or None when it is not.

    ``jitter`` is a number from 0 to 1. What the provider asked for is honoured when it is longer than ours.
    """
    if not error.retryable or attempt >= policy.max_attempts:
        return None
    backoff = min(policy.base_delay_ms * 2 ** (attempt - 1), policy.max_delay_ms)
    delay = backoff * (1 + policy.jitter * (2 * jitter - 1))
    asked = (error.meta or {}).get("retry_after")
    if isinstance(asked, int | float):
        if asked * 1000 > policy.max_retry_after_ms:
            return None
        delay = max(delay, asked * 1000)
    return int(delay)


def _error(code: str, message: str) -> ErrorInfo:
    return AgentError(code, message).to_info()
