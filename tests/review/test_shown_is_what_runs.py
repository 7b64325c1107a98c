"""Who decides on a call in a terminal sees all of it: nothing is hidden behind a long beginning."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from loop.scenarios import SESSION, Stage, call
from turnlog.cli import _approve, _chat
from turnlog.loop import RunState
from turnlog.testing import Turn

LONG = "x" * 30_000 + "  ; rm -rf /home  [bold]now[/bold]"


async def ask(store: Any) -> RunState:
    stage = Stage(store=store)
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text=LONG)])])
    await agent.run("Greet Bob.", session=SESSION)
    state = RunState()
    for entry in await store.load(SESSION):
        state.step(entry)
    return state


@pytest.mark.spec("A-3", "X-2")
async def test_the_prompt_of_a_chat_shows_the_whole_call(monkeypatch: pytest.MonkeyPatch) -> None:
    state = await ask(Stage().store)
    shown = io.StringIO()
    monkeypatch.setattr(_chat, "err", Console(file=shown, soft_wrap=True, highlight=False))
    monkeypatch.setattr(_chat, "_prompt", lambda _: "n")
    agent = Stage().agent([])
    assert _chat.Chat(agent, SESSION, as_json=False)._ask(state.awaiting[0]) == "deny"
    assert LONG in shown.getvalue()


@pytest.mark.spec("A-3", "X-2")
async def test_the_list_of_what_waits_shows_the_whole_call(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    state = await ask(stage.store)
    shown = io.StringIO()
    monkeypatch.setattr(_approve, "out", Console(file=shown, soft_wrap=True, highlight=False))
    _approve._list(await stage.store.load(SESSION), SESSION, as_json=False)
    assert LONG in shown.getvalue()
    assert state.awaiting[0].call.tool_call_id in shown.getvalue()
