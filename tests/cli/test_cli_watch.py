"""`turnlog watch`: the timeline in the terminal, of a run in another process, with approvals."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textual", reason="needs the extra 'tui'")

from cli.shell import Shell
from cli.watched import run_elsewhere, watching
from turnlog import Agent, ToolResult, tool
from turnlog.history import open_store
from turnlog.loop import open_session
from turnlog.models import ScriptedModel, Turn

HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold red]not markup[/] [link=http://x]y[/link] 日本語 🎉"


@tool
def look(place: str) -> str:
    """Look at a place."""
    if place == "cellar":
        raise RuntimeError("it is dark in the cellar")
    return f"There is a lamp in the {place}."


@tool(requires_approval=True)
def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


@tool
def ask(what: str) -> ToolResult:
    """Ask a person."""
    return ToolResult.deferred("a person answers", question=what)


def calls(name: str, **arguments: Any) -> Turn:
    return Turn(text="Let me see.", tool_calls=[{"name": name, "arguments": arguments}])


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """A store with a session that is over, one that failed in a part, and one that waits."""
    place = f"sqlite:{tmp_path / 'log.db'}"
    turns = [calls("look", place="attic"), calls("look", place="cellar"), f"A **lamp**. {HOSTILE}", "Bye."]
    async with Agent(
        ScriptedModel(turns), tools=[look], store=place, instructions="You are a butler."
    ) as agent:
        await agent.run("What is in the attic?", session="attic", title="The attic")
        await agent.run("Thank you", session="attic")
    async with Agent(
        ScriptedModel([calls("delete", path="x.txt"), "Gone."]), tools=[delete], store=place
    ) as agent:
        await agent.run("Delete x", session="waiting", check=False)
    return place


async def test_a_list_has_what_waits_first_and_opens_a_session(url: str) -> None:
    async with watching(url) as watch:
        text = await watch.until("Waits for you", "The attic", "delete x.txt waits for you")
        assert text.index("Waits for you") < text.index("Completed")
        assert "2 sessions" in text and "■ 1 waiting" in text
        await watch.press("j", "enter")
        await watch.until("What is in the attic?", "A lamp.")
        await watch.press("escape")
        await watch.until("2 sessions")
        await watch.press("!")
        await watch.until("fits")
        await watch.press("escape", "/", *"dark in", "enter")
        text = await watch.until("1 session ")
        assert "The attic" in text and "Delete x" not in text


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_a_session_is_read_at_any_width(url: str, size: tuple[int, int]) -> None:
    async with watching(url, "attic", size=size) as watch:
        await watch.press("k")  # before anything was read: nothing to move in yet
        await watch.until("The attic", "Completed", "Window at call 4")
        assert ("   look cellar" in watch.text) == (size[0] == 200)  # the outline has a place in a wide one
        await watch.press("g", "g")
        text = await watch.until("What is in the attic?", "look attic", "lamp in the attic")
        assert all(len(line) <= size[0] for line in watch.lines)
        assert ("Run 1 completed" in text) == ("What the model saw" in text) == (size[0] == 200)
        await watch.press("n")  # to what went wrong
        assert watch.app.screen.chosen.title == "cellar"  # type: ignore[attr-defined]
        await watch.press("1")
        await watch.until("What the model saw", "New since call 1", "look: There is a lamp in the attic.")
        await watch.press(".")
        await watch.until("You are a butler.", "Everything, 3")
        await watch.press("3")
        await watch.until("Arguments", '"place": "cellar"', "What went wrong", "it is dark in the cellar")
        await watch.press("4")
        await watch.until("Began", "Took", "Entries")


async def test_what_a_model_wrote_is_shown_and_not_obeyed(url: str) -> None:
    async with watching(url, "attic", size=(140, 40)) as watch:
        text = await watch.until("[bold red]not markup[/]")
        assert "␛]0;owned␇␛[2J" in text and "[link=http://x]y[/link]" in text
        assert "\x1b" not in text and "日本語 🎉" in text
        await watch.press("/", *"owned", "enter", "y")
        assert "\\u001b]0;owned" in watch.app.clipboard and "\x1b" not in watch.app.clipboard


async def test_errors_alone_a_filter_and_a_search(url: str) -> None:
    async with watching(url, "attic") as watch:
        await watch.until("A lamp.")
        await watch.press("!")
        text = await watch.until("only what went wrong: 1 of")
        assert "look cellar" in text and "A lamp." not in text
        await watch.press("escape", "&", *"attic", "enter")
        await watch.until("only steps with 'attic'")
        await watch.press("escape", "/", *"DARK", "enter")
        await watch.until("/ DARK")
        assert watch.app.screen.chosen.title == "cellar"  # type: ignore[attr-defined]
        await watch.press("/", *"nowhere", "enter")
        await watch.until("nothing found for")


async def test_an_entry_is_copied_whole_as_json(url: str) -> None:
    async with watching(url, "attic") as watch:
        await watch.until("Bye.")
        await watch.press("k")
        await watch.press("y")
        await watch.until("copied as JSON")
        entry = json.loads(watch.app.clipboard)
        assert entry["kind"] == "model_output" and entry["payload"]["message"]["parts"][0]["payload"] == {
            "text": "Bye."
        }
        await watch.press("Y")
        kinds = [json.loads(line)["kind"] for line in watch.app.clipboard.splitlines()]
        assert kinds == ["model_call_started", "model_output"]


async def test_a_run_in_another_process_is_followed_and_decided_on(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/log.db"
    async with run_elsewhere(tmp_path) as process, watching(url, "s") as watch:
        await watch.until("● Running", "look attic", "● running")
        (tmp_path / "go").touch()
        await watch.until("There is a lamp in the attic.", "Waits for your decision", "return list(rows)")
        # The change stands in the file of the run's folder only where this process runs there too.
        await watch.press("a")
        await watch.until_focused("approve")
        assert not any(entry.kind == "approval_decided" for entry in await watch.app.store.load("s"))
        await watch.press("enter")
        await watch.until("Completed in", "All is done.", "approved by")
        out, _ = await process.communicate()
        assert out == b"completed\n"


async def test_a_call_is_denied_with_a_reason_and_the_next_command_is_named(url: str) -> None:
    async def advise(name: str) -> str:
        return f"turnlog resume {name}"

    async with watching(url, "waiting", advise=advise) as watch:
        await watch.until("Waits for your decision", "path x.txt")
        await watch.press("d")
        await watch.until("Enter denies")
        await watch.press(*"keep it", "enter")
        await watch.until("denied; nobody drives the run, continue it with: turnlog resume waiting")
        decided = [e.payload for e in await watch.app.store.load("waiting") if e.kind == "approval_decided"]
        assert [(each.action, each.note) for each in decided] == [("deny", "keep it")]
        await watch.until("denied by")
        await watch.press("a")
        await watch.until("nothing waits here")


async def test_a_question_is_answered(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/log.db"
    async with Agent(
        ScriptedModel([calls("ask", what="Which colour?"), "Blue."]), tools=[ask], store=url
    ) as agent:
        await agent.run("Paint it", session="s", check=False)
        async with watching(url, "s") as watch:
            await watch.until("Waits for an answer", "Which colour?")
            await watch.press("a", *"blue", "enter")
            await watch.until("answered; nobody drives the run")
        assert (await agent.session("s").resume()).output == "Blue."


async def test_a_long_call_is_approved_only_once_its_end_was_seen(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/log.db"
    long = "\n".join(f"line {number}" for number in range(60))
    async with Agent(ScriptedModel([calls("delete", path=long)]), tools=[delete], store=url) as agent:
        await agent.run("Delete it", session="s", check=False)
    async with watching(url, "s", size=(80, 24)) as watch:
        await watch.until("Waits for your decision")
        await watch.press("a")
        await watch.until("there is more")
        await watch.press("enter", "enter")
        assert not any(entry.kind == "approval_decided" for entry in await watch.app.store.load("s"))
        await watch.press("end")
        await watch.until("line 59")
        await watch.press("enter")
        await watch.until("approved")


async def test_a_session_that_is_deleted_while_it_is_open(url: str) -> None:
    async with watching(url, "attic") as watch:
        await watch.until("A lamp.")
        other = open_store(url)
        await open_session(other, "attic").delete()
        text = await watch.until("session attic was deleted; Esc goes back to the list")
        assert "A lamp." not in text
        await watch.press("escape")
        await watch.until("1 session ")
        await other.close()  # type: ignore[attr-defined]


async def test_only_steps_that_come_into_sight_are_laid_out(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/log.db"
    turns = [turn for _ in range(40) for turn in (calls("look", place="attic"), "A lamp.")]
    async with Agent(ScriptedModel(turns), tools=[look], store=url) as agent:
        for number in range(40):
            await agent.run(f"Question {number}", session="s")
    async with watching(url, "s") as watch:
        await watch.until("Question 39")
        screen: Any = watch.app.screen
        laid: list[int] = []
        lay = screen._lay_step
        screen.conversation._lay = lambda at, width: laid.append(at) or lay(at, width)
        await watch.press("g", "g")
        await watch.until("Question 0")
        await watch.press("G")
        await watch.until("Question 39")
        assert len(set(laid)) < 100 < len(screen.shown.steps)


def test_without_a_terminal_or_a_session_it_says_so(shell: Shell) -> None:
    done = shell("watch", "s1")
    assert (done.code, done.out) == (2, "")
    assert "watch needs a terminal" in done.err and "turnlog show s1" in done.err
    shell.env["TERM"] = "xterm-256color"
    shell.ok("run", "-m", shell.script("Hi."), "-s", "s1", "Hello")
    with shell.terminal("watch", "nobody") as terminal:
        assert "there is no session 'nobody'" in terminal.rest()
        assert terminal.wait() == 1
    with shell.terminal("watch", "--store", "sqlite:elsewhere.db") as terminal:
        assert "there is no file" in terminal.rest()


@pytest.mark.parametrize("keys", ["q", "\x03"])
def test_it_leaves_cleanly(shell: Shell, keys: str) -> None:
    shell.env.update(TERM="xterm-256color", COLUMNS="100", LINES="30")
    shell.ok("run", "-m", shell.script("Hi there."), "-s", "s1", "Hello")
    with shell.terminal("watch", "s1") as terminal:
        terminal.until("Hi there.")
        terminal.type(keys)
        assert "\x1b[?1049l" in terminal.rest()  # the screen that was there before is back
        assert terminal.wait() == 0


def test_no_color_means_none(shell: Shell) -> None:
    shell.env.update(TERM="xterm-256color", NO_COLOR="1", COLUMNS="100", LINES="30")
    shell.ok("run", "-m", shell.script("Hi there."), "-s", "s1", "Hello")
    with shell.terminal("watch", "s1") as terminal:
        seen = terminal.until("Hi there.")
        terminal.type("q")
        seen += terminal.rest()
    assert "38;2;" not in seen and "48;2;" not in seen and "38;5;" not in seen


def test_other_commands_do_not_load_it(shell: Shell) -> None:
    shell.write("textual.py", "raise ImportError('loaded')")
    done = shell.cold("--help", env={"PYTHONPATH": str(shell.folder)})
    assert done.code == 0 and "watch" in done.out


@pytest.mark.skipif(os.name != "posix", reason="needs a terminal")
def test_without_the_extra_the_message_names_it(shell: Shell) -> None:
    shell.env.update(TERM="xterm-256color", PYTHONPATH=str(shell.folder))
    shell.write(
        "textual/__init__.py", "raise ModuleNotFoundError(\"No module named 'textual'\", name='textual')"
    )
    with shell.terminal("watch") as terminal:
        assert "pip install 'turnlog[tui]'" in terminal.rest()
        assert terminal.wait() == 1


async def test_the_session_of_a_called_agent_and_a_branch_are_reached(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/log.db"
    scout = Agent(ScriptedModel(["Six callers."]), store=url, name="scout")
    lead = Agent(
        ScriptedModel([calls("scout", input="List the callers"), "Thanks."]),
        tools=[scout.as_tool("Finds.")],
        store=url,
    )
    await lead.run("Who calls it?", session="s")
    await lead.session("s").fork(session="other")
    await lead.close()
    await scout.close()
    async with watching(url, "s") as watch:
        await watch.until("c opens its session", "⑂ other")
        await watch.press("/", *"callers", "enter", "c")
        await watch.until("scout-", "You", "List the callers", "Six callers.")
        assert watch.app.screen.session_id.startswith("scout-")  # type: ignore[attr-defined]
        await watch.press("p")
        await watch.until("Who calls it?", "Thanks.")
        await watch.press("b")
        await watch.until(" other ", "Thanks.")
        assert watch.app.screen.session_id == "other"  # type: ignore[attr-defined]
