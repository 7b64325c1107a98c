"""The terminal that keeps its input open while an answer comes in, driven key by key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import pytest

pytest.importorskip("prompt_toolkit")

from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import to_plain_text
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from turnlog import Agent, tool
from turnlog.cli._slash import commands_of
from turnlog.cli._terminal import Terminal, Words, last_line, main_argument
from turnlog.contract import Entry, ModelInputEntry, RunEndedEntry, TokenUsage
from turnlog.loop import coding_parts
from turnlog.testing import ScriptedModel, Turn

PATIENCE = 60.0
SLOW = Turn(text="tick tock " * 30, delay=0.03, chunk_size=5)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_STORE", f"sqlite:{tmp_path}/log.db")


@tool(requires_approval=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


class Desk:
    """A terminal, the keys that are pressed in it, and what it has in its log."""

    def __init__(self, agent: Agent, terminal: Terminal, keys: PipeInput) -> None:
        self.agent, self.terminal, self.keys = agent, terminal, keys

    def press(self, keys: str) -> None:
        self.keys.send_text(keys)

    async def entries(self) -> list[Entry]:
        return [] if await self.agent.store.tail("s") is None else await self.agent.store.load("s")

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await holds():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def until_ended(self, number: int = 1) -> None:
        async def ended() -> bool:
            found = [entry for entry in await self.entries() if isinstance(entry, RunEndedEntry)]
            return len(found) >= number and self.terminal._stream is None  # pyright: ignore[reportPrivateUsage]

        await self.until(ended)

    async def until_shown(self, words: str) -> None:
        async def shown() -> bool:
            return words in self.shown()

        await self.until(shown)

    def shown(self) -> str:
        return to_plain_text(self.terminal._message())  # pyright: ignore[reportPrivateUsage]

    async def said(self) -> list[tuple[str | None, str]]:
        inputs = [each for each in await self.entries() if isinstance(each, ModelInputEntry)]
        return [(each.payload.source, each.payload.message.text) for each in inputs]


@asynccontextmanager
async def at_desk(*turns: Any, **options: Any) -> AsyncIterator[Desk]:
    """Leaves with Ctrl-D, and checks that the terminal ends then."""
    agent = Agent(ScriptedModel(list(turns), **options), tools=[delete], store="memory:")
    screen = DummyOutput()
    with (
        create_pipe_input() as keys,
        create_app_session(input=keys, output=screen),
        click.Context(click.Command("chat")),
    ):
        terminal = Terminal(agent, "s", None)
        talking = asyncio.create_task(terminal.talk())
        yield Desk(agent, terminal, keys)
        keys.send_text("\x04")
        assert await asyncio.wait_for(talking, PATIENCE) == 0
    await agent.close()


async def test_what_is_typed_during_an_answer_is_sent_to_the_run() -> None:
    async with at_desk(SLOW, "I heard you.") as desk:
        desk.press("Count\r")
        await desk.until_shown("tick")
        desk.press("And then?\r")
        await desk.until_ended()
        assert await desk.said() == [("user", "Count"), ("steering", "And then?")]


async def test_a_command_that_does_not_exist_is_not_sent_to_the_run() -> None:
    async with at_desk(SLOW, "I heard you.", "Bye.") as desk:
        desk.press("Count\r")
        await desk.until_shown("tick")
        for line in ("/nonsense", "/undo", "/attach x", "And then?"):
            desk.press(f"{line}\r")
        await desk.until_ended()
        desk.press("/nonsense\r// a remark\r")
        await desk.until_ended(2)
        assert [text for _, text in await desk.said()] == ["Count", "And then?", "// a remark"]
        desk.press("/quit\r")


async def test_ctrl_c_stops_the_answer_and_keeps_what_was_shown() -> None:
    async with at_desk(SLOW, "Shorter.") as desk:
        desk.press("Count\r")
        await desk.until_shown("tick")
        desk.press("\x03")
        await desk.until_ended()
        failed = [each.payload for each in await desk.entries() if each.kind == "model_call_failed"]
        assert failed[0].partial.startswith("tick")
        desk.press("Be brief\r")
        await desk.until_ended(2)


async def test_pasted_lines_are_one_message_and_alt_enter_makes_one_too() -> None:
    async with at_desk("One.", "Two.") as desk:
        desk.press("\x1b[200~first\nsecond\x1b[201~\r")
        await desk.until_ended()
        desk.press("third\x1b\rfourth\r")
        await desk.until_ended(2)
        assert [text for _, text in await desk.said()] == ["first\nsecond", "third\nfourth"]


@pytest.mark.parametrize(("answer", "status"), [("y", "success"), ("no, because it is mine", "denied")])
async def test_a_call_that_waits_is_asked_about_and_nothing_typed_before_answers_it(
    answer: str, status: str
) -> None:
    calls = Turn(tool_calls=[{"name": "delete", "arguments": {"path": "x"}}], delay=0.05)
    async with at_desk(calls, "Done.") as desk:
        desk.press("Delete x\r")
        desk.press("y")  # not entered yet, and no answer
        await desk.until_shown("run it?")
        desk.press(f"{answer}\r")
        await desk.until_ended()
        [result] = [each.payload for each in await desk.entries() if each.kind == "tool_results"]
        assert result.outcomes[0].status == status
        assert desk.terminal._prompt.default_buffer.text == "y"  # pyright: ignore[reportPrivateUsage]
        desk.press("\x03")  # clears it


async def test_the_status_line_has_tokens_cost_cache_and_window() -> None:
    used = TokenUsage(
        input_tokens=12_000, output_tokens=500, total_tokens=12_500, cached_input_tokens=9_000, cost=0.0123
    )
    async with at_desk(Turn(text="Hello.", usage=used), context_window=100_000) as desk:
        desk.press("Hi\r")
        await desk.until_ended()
        status = desk.terminal._status  # pyright: ignore[reportPrivateUsage]
        assert (
            status.text(200) == "scripted · 12k tokens · $0.0123 · cache 75% · window █░░░░░░░░░ 12% of 100k"
        )
        assert len(status.text(40)) == 39


def test_slash_commands_and_files_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").touch()
    (tmp_path / ".hidden").touch()

    commands = commands_of(Agent(ScriptedModel(["Hi."]), **coding_parts(tmp_path)))

    def offered(text: str) -> list[str]:
        return [each.text for each in Words(commands).get_completions(Document(text), CompleteEvent())]

    assert offered("/u") == ["/undo"] and offered("a /u") == []
    assert offered("/") == ["/help", "/attach", "/open", "/undo", "/quit"]
    assert "/undo" not in commands_of(Agent(ScriptedModel(["Hi."])))
    assert offered("look at @") == ["src/"] and offered("look at @src/m") == ["main.py"]
    assert offered("/attach s") == ["src/"] and offered("no/such") == []


def test_a_tool_call_is_told_in_one_line() -> None:
    assert main_argument({"timeout": 3, "command": "pytest\n-q"}) == "pytest -q"
    assert main_argument({"a": 1, "b": 2}) == "a=1 b=2" and main_argument(None) == ""
    assert last_line("collected 3\n\n1 failed, 2 passed\n[ended with exit code 1]") == "1 failed, 2 passed"
    assert last_line("[ended with exit code 0]") == "[ended with exit code 0]" and last_line("") == "nothing"
