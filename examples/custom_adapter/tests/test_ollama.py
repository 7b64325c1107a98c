"""The contract kit of turnlog, played by a server that speaks Ollama's protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest
from turnlog_ollama import OllamaModel

from turnlog import Agent, AgentError, tool
from turnlog.contract import RetryPolicy
from turnlog.testing import Loopback, LoopbackAnswer, ModelCase, Wired, check_model

REFUSALS = {
    "ModelRateLimited": (429, "too many requests"),
    "ModelOverloaded": (503, "server busy, please try again"),
    "ModelServerError": (500, "llama runner process has terminated"),
    "ModelAuthError": (401, "unauthorized"),
    "ModelNotFound": (404, "model 'm' not found"),
    "ModelBadRequest": (400, "invalid options"),
}
NOT_IN_THE_PROTOCOL = {
    "bad_arguments",
    "overflow",
}  # arguments are JSON always; long prompts are cut silently


def line(message: dict[str, Any] | None = None, **more: Any) -> bytes:
    return json.dumps({"message": {"role": "assistant", **(message or {})}, **more}).encode() + b"\n"


def play(case: ModelCase) -> LoopbackAnswer:
    if case.ending == "error":
        status, words = REFUSALS[case.error_code]
        headers = {} if case.retry_after is None else {"retry-after": f"{case.retry_after:g}"}
        return LoopbackAnswer.json({"error": words}, status, headers)
    lines = [line({"thinking": case.thinking[at : at + 7]}) for at in range(0, len(case.thinking), 7)]
    lines += [line({"content": case.text[at : at + 7]}) for at in range(0, len(case.text), 7)]
    for call in case.calls:
        function = {"name": call.name, "arguments": json.loads(call.args_text)}
        lines.append(line({"tool_calls": [{"function": function}]}))
    body = b"".join(lines)
    if case.ending in ("cut", "hang"):
        then = "stall" if case.ending == "hang" else "end"
        return LoopbackAnswer(body=body, cut_at=len(body) - 9, then=then)
    reason = "length" if case.ending == "length" else "stop"
    return LoopbackAnswer(body=body + line(done=True, done_reason=reason, prompt_eval_count=9, eval_count=5))


async def make_model(case: ModelCase) -> Wired | None:
    if case.name in NOT_IN_THE_PROTOCOL:
        return None
    server = await Loopback(play(case)).__aenter__()
    model = OllamaModel("m", base_url=server.url)
    return Wired(
        model,
        closed=server.no_connections,
        finish=lambda: server.__aexit__(None, None, None),
        sent=lambda: [request.body for request in server.requests],
    )


async def test_the_contract_kit() -> None:
    report = await check_model(make_model)
    assert set(report.skipped) == {f"answer: {name}" for name in NOT_IN_THE_PROTOCOL}


async def test_a_run_with_a_tool() -> None:
    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    call = line({"tool_calls": [{"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]})
    end = line(done=True, done_reason="stop", prompt_eval_count=9, eval_count=5)
    answers = [LoopbackAnswer(body=call + end), LoopbackAnswer(body=line({"content": "It is 3."}) + end)]
    async with Loopback(*answers) as server:
        model = OllamaModel("m", base_url=server.url)
        async with Agent(model, tools=[add], store="memory:") as agent:
            result = await agent.run("What is 1 + 2?", session="s1")
        await model.close()  # an agent closes what it opened itself, and was given this one
        assert result.text == "It is 3."
        assert result.usage is not None and result.usage.input_tokens == 18
        sent = server.requests[1].json["messages"]
        assert sent[-1] == {"role": "tool", "tool_name": "add", "content": "3"}
        assert server.connections == 1, "the connection is kept"


async def test_nobody_answers() -> None:
    model = OllamaModel("m", base_url="http://127.0.0.1:9")
    async with Agent(model, store="memory:", retry=RetryPolicy(max_attempts=1)) as agent:
        with pytest.raises(AgentError, match=r"http://127\.0\.0\.1:9") as caught:
            await agent.run("Hello?", session="s1")
    assert caught.value.code == "ModelUnreachable"
