"""W. Widgets and LiveScreen."""

from __future__ import annotations

import operator
from typing import Any, ClassVar

import pytest

from acceptance.desk import Desk, asks_for, call
from turnlog import ToolContext, tool
from turnlog.context import ContextOptions
from turnlog.contract import LIVE_SCREEN, Entry, ToolSpec, WidgetEvent, encode, try_get_section
from turnlog.loop import compact_session
from turnlog.widgets import (
    MemoryNotebookWidget,
    RenderContext,
    TodoWidget,
    Widget,
    WidgetAnswer,
    WidgetToolContext,
    WorkspaceWidget,
    screen_at,
)


class Counter(Widget[int]):
    """Counts what it is told to, and reads other entries too."""

    name = "counter"
    description = "Counts."
    tools: ClassVar[list[ToolSpec]] = [
        ToolSpec(name="count", description="Count.", parameter_schema={"type": "object", "properties": {}})
    ]

    def initial(self) -> int:
        return 0

    def reduce(self, state: int, entry: Entry) -> int:
        return state + (entry.kind == "widget_event" and entry.payload.widget == self.name)

    def render_live_screen(self, ctx: RenderContext[int]) -> dict[str, str] | None:
        return {"Counter": f"counted {ctx.state}"} if ctx.state else None

    def execute_tool(self, name: str, ctx: WidgetToolContext[int]) -> WidgetAnswer:
        return WidgetAnswer("counted", [WidgetEvent(widget=self.name, event="counted", data={})])


COUNT = asks_for(call("count"))


def screens(entries: list[Any]) -> list[str]:
    found: list[str | None] = []
    for entry in entries:
        if entry.kind == "model_input" and entry.payload.sections:
            found.append(try_get_section(entry.payload.sections.live, LIVE_SCREEN))
        if entry.kind == "tool_results":
            found += [
                try_get_section(outcome.sections.live, LIVE_SCREEN)
                for outcome in entry.payload.outcomes
                if outcome.sections
            ]
    return [screen for screen in found if screen]


@pytest.mark.spec("W-1")
async def test_state_is_a_fold_over_entries_that_replay_and_forks_rebuild() -> None:
    desk = Desk()
    agent = desk.agent(COUNT, COUNT, "Two.", widgets=[Counter()])
    await agent.run("Count twice.", session="s")
    session = agent.session("s")
    assert (await session.replay()).identical
    entries = await desk.entries()
    first = next(entry.seq for entry in entries if entry.kind == "tool_results")
    branch = await session.fork(first, session="branch")
    more = desk.agent(COUNT, "Two here too.", widgets=[Counter()])
    await more.run("Once more.", session="branch")
    assert "counted 2" in (screen_at([Counter()], await desk.entries("branch"), 10**6) or "")
    assert "counted 2" in (screen_at([Counter()], await desk.entries(), 10**6) or "")
    assert (await branch.replay()).identical


@pytest.mark.spec("W-2")
async def test_changed_sections_are_stored_with_inputs_and_with_the_last_result() -> None:
    desk = Desk()
    agent = desk.agent(
        asks_for(call("count"), call("look", place="x")), "Well.", tools=desk.tools(), widgets=[Counter()]
    )
    await agent.run("Go.", session="s")
    await desk.agent("Again.", widgets=[Counter()]).run("Nothing changed.", session="s")
    assert screens(await desk.entries()) == ["# [Live Screen]\n\n## Counter\n\ncounted 1"]
    results = await desk.of_kind("tool_results")
    assert [bool(screens([entry])) for entry in results] == [False, True], "with the one that closes the last"
    last = (await desk.entries())[-1].seq
    assert screen_at([Counter()], await desk.entries(), last) == "# [Live Screen]\n\n## Counter\n\ncounted 1"


@pytest.mark.spec("W-2")
async def test_widgets_stand_in_their_order_and_empty_ones_are_left_out() -> None:
    desk = Desk()
    notes, todo = MemoryNotebookWidget(), TodoWidget()
    widgets = [todo, Counter(), notes]
    agent = desk.agent(
        asks_for(call("notebook_write", name="a", text="b"), call("count")), "Well.", widgets=widgets
    )
    await agent.run("Go.", session="s")
    [screen] = screens(await desk.entries())
    assert screen.startswith("# [Live Screen]")
    assert [line for line in screen.splitlines() if line.startswith("## ")] == ["## Counter", "## Notebook"]


class Looking(Counter):
    """Shows what it is shown: the other widgets, the visible history and the status."""

    name = "looking"
    tools: ClassVar[list[ToolSpec]] = []
    looks: ClassVar[list[tuple[Any, ...]]] = []

    def render_live_screen(self, ctx: RenderContext[int]) -> dict[str, str] | None:
        self.looks.append((dict(ctx.others), len(ctx.entries), ctx.running))
        for change in (
            lambda: setattr(ctx, "running", False),
            lambda: operator.setitem(ctx.others, "counter", 99),  # type: ignore[arg-type]
            lambda: ctx.entries.append(None),  # type: ignore[attr-defined]
        ):
            with pytest.raises((AttributeError, TypeError)):
                change()
        return None


@pytest.mark.spec("W-2")
async def test_what_a_widget_is_shown_is_read_only_and_tells_of_the_others() -> None:
    Looking.looks.clear()
    desk = Desk()
    agent = desk.agent(COUNT, "Counted.", widgets=[Counter(), Looking()])
    await agent.run("Count.", session="s")
    others, seen, running = Looking.looks[-1]
    assert others["counter"] == 1 and seen >= 4 and running is True


@pytest.mark.spec("W-2")
async def test_only_what_changed_is_shown_again_and_everything_after_a_fold() -> None:
    desk = Desk()
    notes = MemoryNotebookWidget()
    widgets = [notes, Counter()]
    write = asks_for(call("notebook_write", name="gate", text="opens with 741"))
    agent = desk.agent(write, COUNT, "Well. " * 2_000, "More.", "And more.", widgets=widgets)
    await agent.run("Go.", session="s")
    first, second = screens(await desk.entries())
    assert "opens with 741" in first and "counted 1" in second and "opens with 741" not in second
    await agent.run("Nothing changes.", session="s")
    assert len(screens(await desk.entries())) == 2
    options = ContextOptions(fold_at=1_500, min_freed_tokens=10)
    await compact_session(desk.store, "s", options=options, widgets=widgets)
    [fold] = await desk.of_kind("fold")
    assert "opens with 741" in fold.payload.screen and "counted 1" in fold.payload.screen
    await agent.run("And now?", session="s")
    shown = encode(desk.seen).decode()
    assert "opens with 741" in shown and "counted 1" in shown
    entries = await desk.entries()
    at = next(entry.seq for entry in entries if entry.kind == "tool_results")
    assert "counted" not in (screen_at(widgets, entries, at) or ""), "the screen of any entry, as it was"
    assert "counted 1" in (screen_at(widgets, entries, entries[-1].seq) or "")


@pytest.mark.spec("W-5")
async def test_notes_of_a_scope_are_read_into_each_session_as_entries() -> None:
    desk = Desk()

    def agent(*turns: Any, scope: str = "customer-42") -> Any:
        return desk.agent(*turns, widgets=[MemoryNotebookWidget(scope=scope)])

    write = asks_for(call("notebook_write", name="diet", text="eats no meat"))
    await agent(write, "Noted.").run("I eat no meat.", session="monday")
    await agent("Of course.").run("Where shall we eat?", session="tuesday")
    assert "eats no meat" in encode(desk.seen).decode()
    assert await desk.of_kind("widget_event", "tuesday"), "read as an entry of the session's own log"
    host = agent("Hello.")
    await host.memory("customer-42").write("diet", "eats fish")
    await host.run("And now?", session="tuesday")
    assert "eats fish" in encode(desk.seen).decode(), "a change is read when it was made"
    await agent("Hello.", scope="customer-7").run("Hello?", session="other")
    assert "eats" not in encode(desk.seen).decode(), "scopes are apart"
    await host.memory("customer-42").erase("diet")
    for session in ("monday", "tuesday", "other"):
        assert (await agent().session(session).replay()).identical, "whatever became of the notes since"


@pytest.mark.spec("W-3")
async def test_widget_tools_are_offered_and_answer_like_any_other() -> None:
    desk = Desk()
    agent = desk.agent(COUNT, "Counted.", widgets=[Counter()])
    await agent.run("Count.", session="s")
    assert desk.model is not None
    offered = [spec.name for spec in desk.model.requests[0].tool_specs]
    assert {"look", "pay", "count"} <= set(offered)
    [results] = await desk.of_kind("tool_results")
    [outcome] = results.payload.outcomes
    assert (outcome.tool_name, outcome.status) == ("count", "success")
    assert results.payload.message.tool_results[0].payload.content == "counted"


@pytest.mark.spec("W-4")
async def test_notes_are_edited_by_model_and_host_in_the_log_and_can_be_undone() -> None:
    desk = Desk()
    notes = MemoryNotebookWidget()
    write = asks_for(call("notebook_write", name="gate", text="opens with 741"))
    agent = desk.agent(write, "Noted.", widgets=[notes])
    await agent.run("Note it.", session="s")
    await agent.append_widget_event("s", notes.write("sea", "is deep"))
    shown = screen_at([notes], await desk.entries(), 10**6) or ""
    assert "opens with 741" in shown and "is deep" in shown
    assert len(await desk.of_kind("widget_event")) == 2
    undo = desk.agent(asks_for(call("notebook_undo")), "Undone.", widgets=[notes])
    await undo.run("Undo.", session="s")
    shown = screen_at([notes], await desk.entries(), 10**6) or ""
    assert "is deep" not in shown and "opens with 741" in shown
    assert (await undo.session("s").replay()).identical


@pytest.mark.spec("W-4")
async def test_notes_outlive_every_fold() -> None:
    desk = Desk()
    notes = MemoryNotebookWidget()
    agent = desk.agent(
        asks_for(call("notebook_write", name="gate", text="opens with 741")),
        *["word " * 2_000] * 8,
        widgets=[notes],
    )
    for turn in range(8):
        await agent.run(f"Question {turn}: {'and so on ' * 200}", session="s")
    for _ in range(2):
        await compact_session(desk.store, "s", options=ContextOptions(fold_at=8_000), widgets=[notes])
        await desk.agent("Still known.", widgets=[notes]).run("What opens the gate?", session="s")
        assert "opens with 741" in encode(desk.seen).decode()
    assert await desk.of_kind("fold")


@pytest.mark.spec("W-4")
async def test_a_todo_list_and_the_files_of_the_session_are_built_in() -> None:
    desk = Desk()

    @tool
    async def rename(path: str, ctx: ToolContext) -> str:
        """Rename a file."""
        ctx.emit("workspace", "touched", {"path": path, "action": "renamed"})
        return "renamed"

    todo, files = TodoWidget(), WorkspaceWidget()
    [plan, *_] = todo.tools
    items = {"items": [{"text": "look", "status": "done"}, {"text": "leap", "status": "open"}]}
    turns = [asks_for(call(plan.name, **items), call("rename", path="notes.txt")), "Well."]
    await desk.agent(*turns, widgets=[todo, files], tools=[rename]).run("Go.", session="s")
    screen = screen_at([todo, files], await desk.entries(), 10**6) or ""
    assert "look" in screen and "leap" in screen and "notes.txt" in screen
