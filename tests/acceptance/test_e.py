"""E. Errors."""

from __future__ import annotations

import logging
import re

import pytest

from acceptance.desk import Desk, asks_for, call
from spec_report import shared_folder
from turnlog import Agent, AgentError, load_model, open_store, tool
from turnlog.contract import CODES, encode, user_message
from turnlog.history import export_jsonl
from turnlog.models import ProviderRouter
from turnlog.testing import Loopback, LoopbackAnswer, ScriptedModel, Turn


@pytest.mark.spec("E-1")
def test_an_error_has_a_code_a_message_and_what_to_branch_on() -> None:
    error = AgentError("ModelRateLimited", "slow down", cause=ValueError("x"), meta={"retry_after": 3})
    assert (error.code, error.message, error.retryable, error.category) == (
        "ModelRateLimited",
        "slow down",
        True,
        "model",
    )
    assert isinstance(error.cause, ValueError) and error.meta == {"retry_after": 3}
    with pytest.raises(ValueError, match="unknown error code"):
        AgentError("NoSuchCode", "")


@pytest.mark.spec("E-1")
def test_the_codes_are_those_of_the_page() -> None:
    """The page beside the specification, where it lies there: code, category and whether to try again. One
    code is ours, for what that page has no name for."""
    page = shared_folder() / "errors.md"
    if not page.is_file():
        pytest.skip(f"no {page}")
    rows = [line.split("|")[1:4] for line in page.read_text(encoding="utf-8").splitlines() if "|" in line][2:]
    told = {
        code: (category.strip(), code in ("SessionConcurrentWrite", "SessionBusy") or again.strip() == "yes")
        for category, codes, again in rows
        for code in re.findall(r"[A-Z]\w+", codes)
    }
    told["OutputTruncated"] = ("loop", False)
    assert {code: (info.category, info.retryable) for code, info in CODES.items()} == told


@pytest.mark.spec("E-1")
@pytest.mark.parametrize(
    "mistake",
    [
        lambda: load_model("nobody:knows"),
        lambda: load_model("anthropic:claude-sonnet-4-5", no_such_field=1),
        lambda: open_store("ftp://nowhere"),
        lambda: Agent("scripted:/no/such/file.json"),
        lambda: Agent(load_model("scripted:x"), tools=[3]),  # type: ignore[list-item]
        lambda: tool(timeout=-1)(lambda: None),
    ],
)
def test_only_this_error_leaves_the_library(mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-0123456789abcdef")
    with pytest.raises(AgentError) as caught:
        mistake()
    assert caught.value.code in CODES


@pytest.mark.spec("E-1")
@pytest.mark.parametrize("raised", [ValueError("no"), KeyError("k"), OSError(5, "io"), RuntimeError()])
async def test_what_a_tool_raises_does_not_leave_either(raised: Exception) -> None:
    @tool
    async def fail() -> str:
        """Fail."""
        raise raised

    desk = Desk()
    result = await desk.agent(asks_for(call("fail")), "It failed.", tools=[fail]).run("Go.", session="s")
    assert result.text == "It failed."


@pytest.mark.spec("E-2")
@pytest.mark.parametrize(
    ("mistake", "thing", "advice"),
    [
        (lambda: load_model("nobody:knows"), "nobody", "anthropic"),
        (lambda: Agent("anthropic:claude-x", store="memory:").run_sync("Hi."), "key", "ANTHROPIC_API_KEY"),
        (lambda: load_model("openai-chat:m", temprature=1), "temprature", "temperature"),
        (lambda: open_store("ftp://nowhere"), "ftp", "sqlite:"),
    ],
    ids=["provider", "key", "field", "store"],
)
def test_a_message_names_the_thing_and_what_to_do(
    mistake, thing: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(AgentError) as caught:
        mistake()
    assert thing in caught.value.message and advice in caught.value.message


@pytest.mark.spec("E-2")
async def test_a_model_is_told_in_words_it_can_act_on() -> None:
    desk = Desk()
    turns = [asks_for(call("loook", place="x")), asks_for(call("look", plac="x")), "Well."]
    await desk.agent(*turns).run("Look.", session="s")
    wrong_name, wrong_field = (
        entry.payload.message.tool_results[0].payload.content for entry in await desk.of_kind("tool_results")
    )
    assert "loook" in wrong_name and "look" in wrong_name
    assert "plac" in wrong_field and "place" in wrong_field


KEY = "sk-proj-Zx81kQw93LmNpR7tYv2b"


@pytest.mark.spec("E-3")
async def test_a_key_is_in_no_message_log_or_entry(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that sends the key back in every place that it can."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("TURNLOG_DEBUG", "all")
    echo = LoopbackAnswer(
        status=400,
        headers={"x-request-id": KEY},
        body=f'{{"error": {{"message": "bad key {KEY}", "type": "{KEY}", "code": "{KEY}"}}}}'.encode(),
    )
    async with Loopback(echo) as server:
        desk = Desk()
        model = load_model("openai-chat:m", api_key=KEY, base_url=server.url)
        agent = Agent(model, store=desk.store)
        with pytest.raises(AgentError) as caught:
            await agent.run(f"My key is {KEY}, is it good?", session="s")
        deltas = [delta async for delta in model.stream([user_message("Hi.")], include_raw=True)]
        await agent.close()
        await model.close()
    assert "bad key" in caught.value.message, "the provider's own words, without the key"
    places = {
        "error": f"{caught.value!r} {caught.value.meta} {caught.value.result!r}",
        "cause": repr(caught.value.to_info()),
        "deltas": encode(deltas).decode(),
        "entries": encode(await desk.entries()).decode(),
        "export": (await export_jsonl(desk.store, "s")).decode(),
        "logs": "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("turnlog")),
        "model": f"{model!r} {model.get_config()!r}",
    }
    assert [place for place, text in places.items() if KEY in text] == []


@pytest.mark.spec("E-3")
async def test_what_a_tool_says_of_a_key_is_cut_out_too() -> None:
    desk = Desk()
    keyed = load_model("openai-chat:m", api_key=KEY)
    spoken = ScriptedModel([asks_for(call("leak")), Turn(text="Well.")])

    @tool
    async def leak() -> str:
        """Say too much."""
        raise RuntimeError(f"cannot log in with {KEY}")

    router = ProviderRouter({"spoken": spoken, "keyed": keyed})
    await Agent(router, tools=[leak], store=desk.store).run("Go.", session="s")
    assert KEY not in encode(await desk.entries()).decode()
