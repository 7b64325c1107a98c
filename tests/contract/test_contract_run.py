"""What goes into a run and what comes out of it, in the logs of older versions too."""

from __future__ import annotations

import pickle
from typing import Any

import pydantic
import pytest

from contract.wire_examples import ANSWERED, RUN
from turnlog.contract import (
    AgentError,
    LoopLimits,
    RetryPolicy,
    RunResult,
    RunStarted,
    ToolPolicy,
    decode,
    encode,
)

OLD_STARTS = [
    b'{"limits":{},"toolPolicy":{},"retry":{}}',
    b'{"limits":{"maxIterations":20,"maxCost":1.5},"toolPolicy":{"maxParallel":4},"retry":{}}',
    b'{"limits":{},"toolPolicy":{"allowList":["add"],"futureRule":1},"retry":{},"agentName":"adder"}',
]


@pytest.mark.parametrize("body", OLD_STARTS)
def test_a_run_of_an_older_log_keeps_the_rules_it_ran_by(body: bytes) -> None:
    started = decode(body, RunStarted)
    assert started.tool_policy.max_parallel == (4 if b"maxParallel" in body else 1)
    assert (started.limits.max_repeated_failures, started.limits.warn_repeated_failures) == (None, 0)
    assert encode(started) == body


def test_a_new_run_records_the_rules_it_runs_by() -> None:
    started = RunStarted(limits=LoopLimits(), tool_policy=ToolPolicy(), retry=RetryPolicy())
    assert encode(started) == (
        b'{"limits":{"maxRepeatedFailures":5,"warnRepeatedFailures":3},"toolPolicy":{"maxParallel":8},"retry":{}}'
    )
    assert decode(encode(started), RunStarted) == started
    off = LoopLimits(max_repeated_failures=None, warn_repeated_failures=0)
    alone = RunStarted(limits=off, tool_policy=ToolPolicy(max_parallel=1), retry=RetryPolicy())
    assert encode(alone) == OLD_STARTS[0]
    assert isinstance(alone.limits, LoopLimits) and isinstance(alone.tool_policy, ToolPolicy)


def make(status: Any, **fields: Any) -> RunResult[Any]:
    return RunResult(session_id="s", run_id=RUN, status=status, **fields)


def test_a_completed_run_has_a_text_and_an_output() -> None:
    done = make("completed", final_assistant_message=ANSWERED, output_value={"sum": 3}, finish_reason="stop")
    assert (done.text, done.output) == ("1 + 2 is 3.", {"sum": 3})
    done.check()
    assert make("completed").text == ""
    assert make("completed", output_value=None).output is None
    assert make("completed", final_assistant_message=ANSWERED).output == "1 + 2 is 3."


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (
            "awaiting_human",
            "IllegalTransition",
            "a person must decide or answer a call first",
        ),
        ("paused", "IllegalTransition", "it was paused and has no answer yet: resume it"),
        ("aborted", "RunAborted", "start another run"),
        ("failed", "IllegalTransition", "read its log"),
    ],
)
@pytest.mark.parametrize("ask", ["text", "output"])
def test_a_run_without_an_answer_says_what_to_do(status: str, code: str, advice: str, ask: str) -> None:
    result = make(status)
    with pytest.raises(AgentError, match=advice) as caught:
        getattr(result, ask)
    assert (caught.value.code, caught.value.result) == (code, result)
    assert f"run {RUN} in session s" in caught.value.message


def test_a_failed_run_raises_its_own_error() -> None:
    why = AgentError("ModelOverloaded", "the provider is full", meta={"retry_after": 2})
    result = make("failed", last_error=why.to_info())
    with pytest.raises(AgentError, match="the provider is full") as caught:
        _ = result.text
    error = caught.value
    assert (error.code, error.retryable, error.retry_after) == ("ModelOverloaded", True, 2.0)
    again = pickle.loads(pickle.dumps(error))
    assert (again.code, again.result) == (error.code, result)


def test_the_older_spelling_of_the_final_answer_is_read() -> None:
    result = make("completed", final_assistant_message=ANSWERED)
    body = encode(result)
    assert b'"finalAssistantMessage"' in body
    older = body.replace(b"finalAssistantMessage", b"finalMessage")
    assert decode(older, RunResult) == result
    newer = older[:-1] + b',"futureField":1}'
    assert decode(newer, RunResult).text == "1 + 2 is 3."
    assert b'"futureField":1' in encode(decode(newer, RunResult))


def test_a_structured_output_of_pydantic_is_written_as_json() -> None:
    class Sum(pydantic.BaseModel):
        value: int

    result = RunResult(session_id="s", run_id=RUN, status="completed", output_value=Sum(value=3))
    assert encode(result).endswith(b'"output":{"value":3}}')
    assert result.output.value == 3
