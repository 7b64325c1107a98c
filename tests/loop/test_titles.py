"""A session's name and the host's own facts about it, given with the run that makes it."""

from __future__ import annotations

from typing import Any

import pytest

from loop.scenarios import SESSION, Stage
from turnlog.contract import AgentError
from turnlog.history import Session
from turnlog.loop import replay


@pytest.mark.spec("H-14")
async def test_a_run_names_the_session_that_it_makes() -> None:
    stage = Stage()
    agent = stage.agent(["One.", "Two."])
    facts = {"customer": 4711}
    await agent.run("Hi.", session=SESSION, title="Rome", metadata=facts)
    await agent.run("Hi again.", session=SESSION, title="Rome", metadata=facts)
    session = await Session.open(stage.store, SESSION, clock=stage.clock, ids=stage.ids)
    assert (session.title, session.metadata) == ("Rome", facts)
    assert [info.title for info in await stage.store.sessions()] == ["Rome"]
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"title": "Oslo"}, "'Rome'; a title is given when a session is made"),
        ({"metadata": {"customer": 1}}, "other metadata"),
        ({"title": 5}, "title is an int; pass text"),
        ({"metadata": "x"}, "metadata is 'x'; pass a dict"),
    ],
)
async def test_a_name_that_would_not_be_kept_is_refused(options: dict[str, Any], words: str) -> None:
    stage = Stage()
    agent = stage.agent(["One.", "Two."])
    await agent.run("Hi.", session=SESSION, title="Rome")
    before = await stage.store.load(SESSION)
    with pytest.raises(AgentError, match=words) as wrong:
        await agent.run("Hi.", session=SESSION, **options)
    assert wrong.value.code == "ConfigInvalid"
    assert await stage.store.load(SESSION) == before
    assert (await agent.run("Hi.", session=SESSION)).text == "Two."


async def test_metadata_that_json_cannot_carry_makes_no_session() -> None:
    stage = Stage()
    with pytest.raises(AgentError, match="metadata"):
        await stage.agent(["One."]).run("Hi.", session=SESSION, metadata={"at": object()})
    assert await stage.store.tail(SESSION) is None
