"""Secrets are masked where they belong, whole, and no ordinary word is."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from loop.scenarios import SESSION, Stage, call, decide
from turnlog import Agent, AgentError, events, load_model, tool
from turnlog.contract import Secrets, encode, guard, guard_environment, is_guardable, scrub
from turnlog.history import MemoryStore, open_store
from turnlog.loop import AgentConfig, replay
from turnlog.loop._agent_config import ModelTable
from turnlog.mcp import MCPServer
from turnlog.models import ProviderRouter
from turnlog.testing import ScriptedModel, Turn

OWN = "Zq7w-0f1e2d3c4b5a6978"


class KeyModel(ScriptedModel):
    """A scripted model that has a key."""

    key = OWN

    @property
    def secrets(self) -> Mapping[str, str]:
        return {"the key of this test": self.key}


class PasswordStore(MemoryStore):
    def __init__(self, password: str) -> None:
        super().__init__()
        self.secrets = {f"the password {password[:4]}… of this test": password}


def agent_of(stage: Stage, turns: list[Any], **parts: Any) -> Agent:
    parts.setdefault("model", KeyModel(turns, clock=stage.clock, ids=stage.ids))
    return Agent(store=parts.pop("store", stage.store), clock=stage.clock, ids=stage.ids, **parts)


async def log_of(stage: Stage, session: str = SESSION) -> str:
    return "\n".join(encode(entry).decode() for entry in await stage.store.load(session))


@pytest.mark.parametrize(
    "value",
    [
        "sk-proj-abcdefghijkl",
        "ghp_abcdefghijklmnop",
        "AKIAABCDEFGHIJKLMNOP",
        "3f9a17c04be2d58866a1f0c97b2e4d35",
        "123e4567-e89b-12d3-a456-426614174000",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzz99",
        "QmFzZTY0IGlzIGZ1bg",
        "Tr0ub4dor-and-3x7Qa",
    ],
)
def test_what_looks_random_or_begins_as_a_key_is_guarded(value: str) -> None:
    assert is_guardable(value)
    assert Secrets([value]).scrub(f"it is {value}.") == "it is [secret]."


@pytest.mark.parametrize(
    "value",
    [
        "postgres",
        "lm-studio",
        "anything",
        "changeme",
        "not-needed-for-local-servers",
        "my local development password",
        "MyLocalDevelopmentPassword",
        "internationalization",
        "/home/ann/.config/gcloud/credentials.json",
        "kubernetes-cluster-1",
        "Password1234Password",
    ],
)
def test_words_are_not_guarded(value: str) -> None:
    assert not is_guardable(value)
    assert not guard(value)
    assert Secrets([value]).scrub(f"it is {value}.") == scrub(f"it is {value}.") == f"it is {value}."


def test_a_secret_is_masked_whole_and_in_no_longer_word() -> None:
    masked = Secrets([OWN]).scrub
    assert masked(f"x{OWN} {OWN}9") == f"x{OWN} {OWN}9"
    assert masked(f"{OWN}{OWN}") == "[secret][secret]"
    for before in ("\\n", "\\u0020", "%20", "\x1b[32m", "=", '"', "ÿ"):
        assert masked(f"a{before}{OWN}-b") == f"a{before}[secret]-b"


@pytest.mark.parametrize(
    "name",
    ["OPENAI_API_KEY", "GITHUB_TOKEN", "STRIPE_KEY", "DB_PASSWORD", "AWS_BEARER_TOKEN_BEDROCK", "PGPASSWORD"],
)
async def test_one_list_of_names_says_which_variables_hold_secrets(name: str, monkeypatch: Any) -> None:
    value = f"q{len(name)}X9-77b1-4Ff0-{name.lower()[:4]}-8Zk2"
    monkeypatch.setenv(name, value)
    stage = Stage()
    await agent_of(stage, ["Fine."]).run(f"It is {value}.", session=SESSION)
    assert "It is [secret]." in await log_of(stage)


def test_the_password_of_an_address_in_the_environment_is_guarded() -> None:
    guard_environment(
        {"DATABASE_URL": "mysql://ann:Pw9x-Kk31-zZ77-q0Qa@h/db", "HOME": "/home/An1x2B3c4D5e6F7"}
    )
    assert Secrets().scrub("Pw9x-Kk31-zZ77-q0Qa /home/An1x2B3c4D5e6F7") == "[secret] /home/An1x2B3c4D5e6F7"


async def test_a_weak_password_changes_no_conversation_and_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    url_store = open_store("postgresql://postgres:postgres@localhost/app")
    stage = Stage()
    model = ScriptedModel([Turn(text="Use postgresql.")], clock=stage.clock, ids=stage.ids)
    with caplog.at_level(logging.WARNING):
        Agent(model, store=url_store)
        stage.store = PasswordStore("postgres")
        result = await agent_of(stage, [], model=model).run("How do I install postgres?", session=SESSION)
        agent_of(stage, [], model=model)
    assert result.text == "Use postgresql."
    assert model.requests[0].messages[0].text == "How do I install postgres?"
    warned = [record.getMessage() for record in caplog.records if "too plain" in record.getMessage()]
    assert len(warned) == 2 and "PostgreSQL at localhost" in warned[0]
    assert "postgres:postgres" not in "".join(warned)


async def test_a_secret_of_one_agent_edits_no_conversation_of_another() -> None:
    stage = Stage()
    await agent_of(stage, [f"You said {OWN}."]).run(f"Mine: {OWN}", session="owner")
    other = ScriptedModel([f"You said {OWN}."], clock=stage.clock, ids=stage.ids)
    result = await agent_of(stage, [], model=other).run(f"Not mine: {OWN}", session="other")
    assert OWN not in await log_of(stage, "owner")
    assert result.text == f"You said {OWN}."
    assert (await stage.store.load("other"))[-1].kind == "run_ended"
    assert OWN in await log_of(stage, "other")


async def test_a_stores_password_is_in_no_conversation_that_it_keeps() -> None:
    stage = Stage(store=PasswordStore(OWN))
    model = ScriptedModel(["Fine."], clock=stage.clock, ids=stage.ids)
    await agent_of(stage, [], model=model).run(f"It is {OWN}", session=SESSION)
    assert OWN not in await log_of(stage)


async def test_a_call_with_a_secret_in_its_arguments_is_not_run() -> None:
    stage, ran = Stage(), list[str]()

    @tool(timeout=None)
    async def write(text: str) -> str:
        """Write a text."""
        ran.append(text)
        return "written"

    turns = [Turn(tool_calls=[call("write", text=f"key: {OWN}"), call("write", text="plain")]), "Done."]
    agent = agent_of(stage, turns, tools=[write])
    shown = [encode(event).decode() async for event in agent.run_stream("Go.", session=SESSION)]
    assert ran == ["plain"]
    assert OWN not in "".join(shown) + await log_of(stage)
    refused = [text for text in shown if "was not run: its arguments held a secret" in text]
    assert refused
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("text", ["It is {}, you see.", "{}", "Zq Zq7w-0f {} Zq7w", "{}{} Z"])
async def test_a_secret_cut_into_deltas_reaches_no_watcher(size: int, text: str) -> None:
    stage = Stage()
    agent = agent_of(stage, [Turn(text=text.format(OWN, OWN), thinking=f"Hm, {OWN}", chunk_size=size)])
    async with agent.run_stream("Go.", session=SESSION) as run:
        seen = [event async for event in run]
        snapshot = run.snapshot
    said = "".join(event.text for event in seen if isinstance(event, events.TextDelta))
    thought = "".join(event.text for event in seen if isinstance(event, events.ThinkingDelta))
    assert said == text.format("[secret]", "[secret]")
    assert thought == "Hm, [secret]"
    assert snapshot is None or snapshot.text == said
    assert (await run.result()).text == said


def test_a_header_with_a_key_is_in_no_representation_and_belongs_to_the_model() -> None:
    model = load_model(
        "openai-chat:gpt-5",
        api_key="k",
        base_url="http://127.0.0.1:9/v1",
        extra_headers={"Authorization": f"Bearer {OWN}", "X-Api-Key": "short", "X-Team": "red"},
    )
    shown = repr(model.get_config())
    assert OWN not in shown and "short" not in shown
    assert "X-Team" in shown and "red" in shown
    assert OWN in model.secrets.values()
    assert OWN in ProviderRouter({"one": model}).secrets.values()


def test_a_configuration_shows_no_key_header_or_password() -> None:
    options = {"api_key": "pw42", "extra_headers": {"X-Key": "pw43"}, "base_url": "http://127.0.0.1:9/v1"}
    model = ModelTable(name="openai-chat:gpt-5", options=options)
    shown = repr(AgentConfig(model=model, store="postgresql://ann:pw44@h/db"))
    assert "pw4" not in shown
    assert "gpt-5" in shown and "http://127.0.0.1:9/v1" in shown and "ann" in shown


def test_a_cookie_holds_several_secrets() -> None:
    headers = {"Cookie": f"session={OWN}; csrf=Kq81-zZ09-Aa12-Bb34; theme=dark"}
    model = load_model("openai-chat:gpt-5", api_key="k", extra_headers=headers)
    assert {OWN, "Kq81-zZ09-Aa12-Bb34"} <= set(model.secrets.values())
    assert "dark" not in model.secrets.values()


def test_a_toolset_owns_the_keys_that_it_was_given() -> None:
    over_http = MCPServer.http(
        "https://x/mcp", headers={"Authorization": f"Bearer {OWN}", "Accept": "text/plain"}
    )
    as_process = MCPServer.stdio("serve", env={"GITHUB_TOKEN": OWN, "LANG": "C"})
    assert list(over_http.secrets.values()) == list(as_process.secrets.values()) == [OWN]


async def test_a_key_that_was_changed_is_masked_from_the_next_run_on() -> None:
    stage = Stage()
    model = KeyModel(["One.", "Two."], clock=stage.clock, ids=stage.ids)
    agent = agent_of(stage, [], model=model)
    await agent.run(f"First {OWN}", session=SESSION)
    model.key = "Other-9x8C7v6B5n4M3"
    await agent.run(f"Then {model.key}", session=SESSION)
    assert "Other-" not in await log_of(stage) and OWN not in await log_of(stage)


def test_an_error_hides_what_anybody_configured() -> None:
    load_model("openai-chat:gpt-5", api_key="sk-someone-elses-0123", base_url="http://127.0.0.1:9/v1")
    assert "someone" not in str(AgentError("ModelAuthError", "refused: sk-someone-elses-0123"))


async def test_a_decision_cannot_put_a_secret_into_a_call() -> None:
    stage = Stage()
    agent = agent_of(
        stage, [Turn(tool_calls=[call("send", to="bob", text="x")]), "Done."], tools=stage.tools()
    )
    await agent.run("Go.", session=SESSION)
    with pytest.raises(AgentError, match="hold a secret"):
        await decide(agent, "modify", arguments={"to": "bob", "text": OWN})
    await decide(agent, "approve", note=f"not {OWN}")
    await agent.resume(SESSION)
    assert stage.effects == ["send bob: x"]
    assert OWN not in await log_of(stage)


async def test_the_adapter_gets_the_state_of_a_call_as_it_was_given_and_the_log_a_mask() -> None:
    stage = Stage()
    model = KeyModel([Turn(text="one"), Turn(text="two")], clock=stage.clock, ids=stage.ids)
    agent = agent_of(stage, [], model=model)
    state = {"tenant": "acme", "token": OWN, "of": [{"deep": OWN}]}
    await agent.run("Go.", session=SESSION, invocation_state=state)
    assert model.requests[0].invocation_state == state
    log = await log_of(stage)
    assert "acme" in log and OWN not in log
    await agent.run("Go on.", session=SESSION)
    assert model.requests[1].invocation_state is None, "it belongs to the run that it was given to"
    report = await replay(stage.store, SESSION)
    assert report.identical, report.difference
