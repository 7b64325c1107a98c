"""Who decides on a call in a terminal sees all of it: nothing is hidden behind a long beginning."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from loop.scenarios import SESSION, Stage, call
from turnlog.cli import _asking, _chat, _control
from turnlog.contract import PendingApproval
from turnlog.testing import Turn

LONG = "x" * 30_000 + "  ; rm -rf /home  [bold]now[/bold]"


async def ask(store: Any) -> PendingApproval:
    stage = Stage(store=store)
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text=LONG)])])
    await agent.run("Greet Bob.", session=SESSION)
    (waiting,) = await agent.pending(SESSION)
    return waiting


@pytest.mark.spec("A-3")
async def test_the_prompt_of_a_chat_shows_the_whole_call(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = await ask(Stage().store)
    shown = io.StringIO()
    monkeypatch.setattr(_asking, "err", Console(file=shown, soft_wrap=True, highlight=False))
    monkeypatch.setattr(_chat, "prompt_anew", lambda _: "n")
    assert _chat.ask(waiting) == _chat.Choice("deny")
    assert LONG in shown.getvalue()


@pytest.mark.spec("A-3")
async def test_the_list_of_what_waits_shows_the_whole_call(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = await ask(Stage().store)
    shown = io.StringIO()
    monkeypatch.setattr(_control, "out", Console(file=shown, soft_wrap=True, highlight=False))
    _control._show_calls([waiting], SESSION, {SESSION: "."})
    assert LONG in shown.getvalue()
    assert waiting.tool_call_id in shown.getvalue()
