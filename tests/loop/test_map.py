"""Many inputs through one agent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from loop.scenarios import MortalStore
from turnlog import Agent, Input, tool
from turnlog.contract import AgentError
from turnlog.history import MemoryStore
from turnlog.models import ModelRequest
from turnlog.testing import ScriptedModel, Turn


@dataclass
class Number:
    value: int


def counted(request: ModelRequest) -> str:
    return f'{{"value": {len(request.messages[0].text)}}}'


def words(number: int) -> list[str]:
    return ["x" * size for size in range(1, number + 1)]


async def test_every_input_has_its_result_with_usage_summed() -> None:
    agent = Agent(ScriptedModel(default=counted), store="memory:", output_type=Number)
    batch = agent.map(words(30), concurrency=4)
    found = await batch.results()
    assert [done.output for done in found] == [Number(size) for size in range(1, 31)]
    assert [done.index for done in found] == list(range(30))
    assert (batch.done, batch.failed, batch.total) == (30, 0, 30)
    spent = [done.result.usage.total_tokens for done in found if done.result and done.result.usage]
    assert batch.usage is not None and batch.usage.total_tokens == sum(spent) > 0


async def test_no_more_than_concurrency_are_in_progress() -> None:
    now = most = 0

    async def answer(request: ModelRequest) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        now -= 1
        return "ok"

    agent = Agent(ScriptedModel(default=answer), store="memory:")
    assert len([done async for done in agent.map(words(20), concurrency=3)]) == 20
    assert most == 3


async def test_inputs_are_taken_as_they_are_needed() -> None:
    taken: list[int] = []

    def endless() -> Any:
        number = 0
        while True:
            taken.append(number)
            yield f"input {number}"
            number += 1

    agent = Agent(ScriptedModel(default="ok"), store="memory:")
    batch = agent.map(endless(), concurrency=2)
    seen = 0
    stream = aiter(batch)
    async for _ in stream:
        seen += 1
        if seen == 5:
            break
    await stream.aclose()  # type: ignore[attr-defined]  # pyright: ignore
    assert batch.total is None and len(taken) < 15
    assert agent.loop.sessions.runs == {}


async def test_a_restart_asks_for_nothing_again_that_is_done() -> None:
    store, inputs = MemoryStore(), [*words(6), "x", Input("long", sections=[("Title", "text")])]
    first = ScriptedModel(default=counted)
    agent = Agent(first, store=store, output_type=Number)
    before = await agent.map(inputs, sessions="count").results()
    assert first.calls == 8 and len({done.session_id for done in before}) == 8
    again = ScriptedModel()
    after = await Agent(again, store=store, output_type=Number).map(inputs[::-1], sessions="count").results()
    assert again.calls == 0 and all(done.known for done in after)
    assert [done.output for done in after[::-1]] == [done.output for done in before]
    more = ScriptedModel(default=counted)
    grown = await Agent(more, store=store, output_type=Number).map(words(8), sessions="count").results()
    assert more.calls == 2 and [done.known for done in grown] == [True] * 6 + [False] * 2


async def test_what_a_crash_left_open_is_resumed_and_what_was_stopped_is_made_again() -> None:
    store = MortalStore()
    names = ["a", "b"]

    def die(request: ModelRequest) -> str:
        store.dead = True
        return "lost"

    with pytest.raises(AgentError):
        await Agent(ScriptedModel([die]), store=store).run("one", session="a")
    store.dead = False
    stopped = Agent(ScriptedModel([AgentError("ModelAuthError", "no key")]), store=store)
    with pytest.raises(AgentError):
        await stopped.run("two", session="b")
    model = ScriptedModel(default="ok")
    found = await Agent(model, store=store).map(["one", "two"], sessions=names).results()
    assert [(done.output, done.known) for done in found] == [("ok", False), ("ok", False)]
    assert model.calls == 2
    runs = [[entry.kind for entry in await store.load(name)].count("run_started") for name in names]
    assert runs == [1, 2]


async def test_an_input_done_for_another_type_is_done_again() -> None:
    store = MemoryStore()
    model = ScriptedModel(["plain words", '{"value": 5}'])
    assert [d.output async for d in Agent(model, store=store).map(["x"], sessions="s")] == ["plain words"]
    typed = Agent(model, store=store).map(["x"], sessions="s", output_type=Number)
    assert [done.output async for done in typed] == [Number(5)]


async def test_one_that_fails_is_an_item_with_its_error_and_the_others_are_done() -> None:
    def answer(request: ModelRequest) -> str:
        if request.messages[0].text == "xx":
            raise AgentError("ModelAuthError", "no key")
        return "ok"

    agent = Agent(ScriptedModel(default=answer), store="memory:")
    batch = agent.map(words(3))
    found = await batch.results()
    assert batch.failed == 1 and [done.error and done.error.code for done in found] == [
        None,
        "ModelAuthError",
        None,
    ]
    with pytest.raises(AgentError, match="no key"):
        _ = found[1].output


async def test_one_that_waits_for_a_person_is_an_item_that_says_so_and_is_taken_up_later() -> None:
    @tool(requires_approval=True)
    def send(to: str) -> str:
        """Send it."""
        return "sent"

    call = Turn(tool_calls=[{"name": "send", "arguments": {"to": "Ann"}}])
    agent = Agent(ScriptedModel([call, "Sent."]), tools=[send], store="memory:")
    (waits,) = await agent.map(["Send."], sessions="s").results()
    assert waits.result is not None and waits.result.status == "awaiting_human"
    with pytest.raises(AgentError, match="a person must decide"):
        _ = waits.output
    (pending,) = await agent.pending()
    await agent.session(pending.session_id).approve(pending, by="ann")
    assert [done.output for done in await agent.map(["Send."], sessions="s").results()] == ["Sent."]


async def test_leaving_the_loop_ends_what_is_in_progress() -> None:
    waiting, count = asyncio.Event(), 0

    async def answer(request: ModelRequest) -> str:
        nonlocal count
        if request.messages[0].text == "x":
            return "ok"
        count += 1
        if count == 4:
            waiting.set()
        await asyncio.Event().wait()
        return "never"

    agent = Agent(ScriptedModel(default=answer), store="memory:")

    async def all_of_them() -> None:
        async for _ in agent.map(words(5), sessions="s"):
            pass

    task = asyncio.create_task(all_of_them())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert agent.loop.sessions.runs == {}
    statuses = [info.status for info in await agent.store.sessions()]
    assert statuses.count("aborted") >= 4 and set(statuses) <= {"aborted", "completed"}


@pytest.mark.parametrize(
    ("inputs", "options", "words"),
    [
        ("text", {}, "pass a list"),
        (5, {}, "pass a list"),
        (["a"], {"concurrency": 0}, "1 or more"),
        (["a"], {"concurrency": "many"}, "1 or more"),
        (["a"], {"sessions": ""}, "sessions is empty"),
        (["a"], {"sessions": ["s", "t"]}, "one session for each input"),
        (["a", "b"], {"sessions": ["s", "s"]}, "one session for each input"),
        (["a"], {"sessions": [5]}, "names of sessions"),
        (["a"], {"run_id": "r"}, "run_id names one run"),
    ],
)
async def test_mistakes_are_named_at_once(inputs: Any, options: dict[str, Any], words: str) -> None:
    agent = Agent(ScriptedModel(default="ok"), store="memory:")
    with pytest.raises(AgentError, match=words) as caught:
        agent.map(inputs, **options)
    assert caught.value.code == "ConfigInvalid"


async def test_a_wrong_option_ends_the_batch() -> None:
    agent = Agent(ScriptedModel(default="ok"), store="memory:")
    with pytest.raises(AgentError, match="limits"):
        await agent.map(words(5), limits=5).results()  # type: ignore[arg-type]  # pyright: ignore
    assert agent.loop.sessions.runs == {}


async def test_the_bar_tells_how_many_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    agent = Agent(ScriptedModel(default="ok"), store="memory:")
    await agent.map(words(3), progress=True).results()
    shown = capsys.readouterr()
    assert "3 done" in shown.err and "tokens" in shown.err and shown.out == ""
    await agent.map(words(3)).results()
    assert capsys.readouterr().err == ""
