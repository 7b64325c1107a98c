"""A key that got into anything a run touches is in no entry, error, result, event, log or transcript."""

from __future__ import annotations

import logging
import traceback
from typing import Any

import pytest

from loop.scenarios import SESSION, Stage, call, decide
from turnlog import Agent, AgentError, tool
from turnlog.contract import RetryPolicy, encode, guard
from turnlog.history import (
    MemoryStore,
    export_jsonl,
    open_store,
    show_url,
    verify,
)
from turnlog.loop import Hooks, replay
from turnlog.testing import FaultStore, ScriptedModel, StoreFault, Turn
from turnlog.transcript import render_html, render_markdown

KEY = "sk-canary-0f1e2d3c4b5a6978"
guard(KEY)


async def sinks(stage: Stage, agent: Agent, caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """Run, and collect everything that anybody could read afterwards."""
    shown: list[str] = []
    with caplog.at_level(logging.DEBUG):
        async for event in agent.run_stream(f"Go, with {KEY}.", session=SESSION):
            shown.append(encode(event).decode())
        entries = await stage.store.load(SESSION)
        exported = [encode(row).decode() async for row in _lines(stage)]
    return {
        "events": "\n".join(shown),
        "entries": "\n".join(encode(entry).decode() for entry in entries),
        "jsonl": "\n".join(exported),
        "markdown": render_markdown(entries),
        "html": render_html(entries),
        "logs": caplog.text,
    }


async def _lines(stage: Stage) -> Any:
    exported: Any = export_jsonl(stage.store, SESSION)
    found = await exported if hasattr(exported, "__await__") else exported
    for line in found if isinstance(found, list) else [found]:
        yield str(line)


@pytest.mark.spec("E-3")
async def test_a_key_in_anything_said_or_done_is_masked(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()

    @tool(timeout=None)
    async def leak(what: str) -> str:
        """Say more than it should."""
        if what == "raise":
            raise ValueError(f"401 for {KEY}")
        return f"the key is {KEY}"

    turns = [
        Turn(text=f"I know {KEY}", tool_calls=[call("leak", what=KEY), call("leak", what="raise")]),
        AgentError("ModelServerError", f"Incorrect API key provided: {KEY}"),
        f"It was {KEY}.",
    ]
    agent = stage.agent(
        turns,
        tools=[leak],
        instructions=f"Never say {KEY}.",
        retry=RetryPolicy(jitter=0.0),
    )
    for name, text in (await sinks(stage, agent, caplog)).items():
        assert KEY not in text, name
    assert await verify(stage.store, SESSION) == []
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("E-3", "L-13")
async def test_a_key_in_a_hooks_error_is_masked(caplog: pytest.LogCaptureFixture) -> None:
    def hook(_: Any) -> None:
        raise ValueError(f"cannot reach https://x/?key={KEY}")

    stage = Stage()
    agent = stage.agent(["Hello."], hooks=Hooks(after_model=[hook]))
    for name, text in (await sinks(stage, agent, caplog)).items():
        assert KEY not in text, name


@pytest.mark.spec("E-3", "A-4")
async def test_a_key_in_a_decision_is_masked_and_never_in_what_runs() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="x")]), "Done."])
    await agent.run("Go.", session=SESSION)
    with pytest.raises(AgentError, match="hold a secret"):
        await decide(agent, "modify", arguments={"to": "bob", "text": KEY})
    await decide(agent, "modify", arguments={"to": "bob", "text": "the key"}, note=f"use {KEY}")
    await agent.resume(SESSION)
    assert KEY not in "\n".join(encode(entry).decode() for entry in await stage.store.load(SESSION))


@pytest.mark.spec("E-3", "L-8")
async def test_a_key_in_a_stores_error_is_masked() -> None:
    stage = Stage()
    error = OSError(f"cannot write to s3://{KEY}@bucket")
    stage.store = FaultStore(MemoryStore(), [StoreFault(nth=1, error=error)])
    result = await stage.agent(["Hello."]).run("Go.", session=SESSION, check=False)
    assert result.last_error is not None and KEY not in encode(result).decode()
    assert "SessionWriteFailed" in result.last_error.code


@pytest.mark.spec("E-3")
@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:{}@h/db",
        "postgressql://u:{}@h/db",
        "postgresql://u:{}@127.0.0.1:1/db",
        "postgresql://?password={}&host=127.0.0.1&port=1",
        "postgresql://u:{}@[::1/db",
        "//u:{}@h/db",
    ],
)
@pytest.mark.parametrize("password", ["hunter2-hunter2", "pw42"])
async def test_a_stores_password_is_in_no_error(url: str, password: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(AgentError) as caught:
        await open_store(url.format(password)).load("s1")
    assert password not in "".join(traceback.format_exception(caught.value))


@pytest.mark.spec("E-3")
def test_an_address_for_people_has_no_password() -> None:
    assert show_url("postgresql://ann:pw42@h:5432/db") == "postgresql://ann:[secret]@h:5432/db"
    assert show_url("postgresql://h/db?password=pw42&x=1") == "postgresql://h/db?password=[secret]&x=1"
    assert show_url("sqlite:/home/ann/a@b/c:d.db") == "sqlite:/home/ann/a@b/c:d.db"
    assert show_url("postgresql://ann@h/db") == "postgresql://ann@h/db"


@pytest.mark.spec("E-3", "P-10")
@pytest.mark.parametrize("name", ["openai:gpt-5", "openai-chat:gpt-5", "anthropic:claude", "google:gemini"])
def test_a_models_key_is_in_no_representation(name: str) -> None:
    from turnlog import load_model

    model = load_model(name, api_key=KEY)
    assert KEY not in repr(model) + repr(vars(model)) + repr(model.get_config()) + str(model.get_config())
    with pytest.raises(AgentError) as caught:
        model.update_config(temperature="hot")
    assert KEY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.spec("E-3")
async def test_a_key_in_a_recorded_request_never_was(caplog: pytest.LogCaptureFixture) -> None:
    """What a scripted model was sent is what the log has: masked."""
    stage = Stage()
    model = ScriptedModel(["Hello."], clock=stage.clock, ids=stage.ids)
    agent = Agent(model, store=stage.store, clock=stage.clock, ids=stage.ids)
    await sinks(stage, agent, caplog)
    assert KEY not in "".join(encode(message).decode() for message in model.requests[0].messages)
