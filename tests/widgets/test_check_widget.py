"""The contract kit for widgets: ours pass, and each broken promise is found and named."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

from turnlog.contract import Entry, ToolSpec, WidgetEvent, WidgetEventEntry
from turnlog.testing import check_widget
from turnlog.widgets import (
    MemoryNotebookWidget,
    RenderContext,
    TodoWidget,
    Widget,
    WidgetAnswer,
    WidgetToolContext,
    WorkspaceWidget,
)

NOTEBOOK = MemoryNotebookWidget()
NOTES = [NOTEBOOK.write("a", "b\nc"), NOTEBOOK.replace_all({"x": "1", "y": "2"}), NOTEBOOK.undo()]


OURS: list[tuple[Any, dict[str, Any]]] = [
    (MemoryNotebookWidget, {"events": NOTES}),
    (
        MemoryNotebookWidget,
        {
            "calls": [
                ("notebook_write", {"name": "n", "text": "one"}),
                ("notebook_write", {"name": "n", "text": "two"}),
                ("notebook_erase", {"name": "n"}),
                ("notebook_undo", {}),
            ]
        },
    ),
    (TodoWidget, {}),
    (
        TodoWidget,
        {
            "calls": [
                ("todo_plan", {"items": [{"text": "look"}, {"text": "leap", "status": "doing"}]}),
                ("todo_mark", {"number": 1, "status": "done"}),
            ]
        },
    ),
    (WorkspaceWidget, {"events": [WorkspaceWidget().event("touched", {"path": "a", "action": "moved"})]}),
]


@pytest.mark.spec("W-1", "W-3", "W-4", "X-5")
@pytest.mark.parametrize(("make", "options"), OURS)
async def test_ours_pass(make: Any, options: dict[str, Any]) -> None:
    names = await check_widget(make, **options)
    assert "replaying_the_log_rebuilds_the_state" in names and "a_fork_forks_the_state" in names


class Counter(Widget[dict[str, int]]):
    """A sound widget that counts; what is wrong with it below is one method each."""

    name: ClassVar[str] = "counter"
    description: ClassVar[str] = "Counts."

    @property
    def tools(self) -> Sequence[ToolSpec]:
        schema = {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]}
        return (ToolSpec(name="count", description="Count on.", parameter_schema=schema),)

    def initial(self) -> dict[str, int]:
        return {}

    def reduce(self, state: dict[str, int], entry: Entry) -> dict[str, int]:
        if not isinstance(entry, WidgetEventEntry) or entry.payload.widget != self.name:
            return state
        if entry.payload.event != "counted":
            return state
        return {**state, "count": state.get("count", 0) + int(entry.payload.data["by"])}

    def render_live_screen(self, ctx: RenderContext[dict[str, int]]) -> Any:
        return {"Count": str(ctx.state["count"])} if "count" in ctx.state else None

    def execute_tool(self, name: str, ctx: WidgetToolContext[dict[str, int]]) -> WidgetAnswer:
        if name != "count":
            return super().execute_tool(name, ctx)
        return WidgetAnswer("counted", [self.event("counted", {"by": ctx.arguments["by"]})])


class Nameless(Counter):
    description: ClassVar[str] = " "


class TwoOfOneName(Counter):
    @property
    def tools(self) -> Sequence[ToolSpec]:
        return [*super().tools, *super().tools]


class BadSchema(Counter):
    @property
    def tools(self) -> Sequence[ToolSpec]:
        schema = {"type": "object", "properties": {"by": {"type": "int"}}}
        return (ToolSpec(name="count", description="Count on.", parameter_schema=schema),)


class BadName(Counter):
    @property
    def tools(self) -> Sequence[ToolSpec]:
        return (ToolSpec(name="count on", description="d", parameter_schema={"type": "object"}),)


class TakesAnyTool(Counter):
    def execute_tool(self, name: str, ctx: WidgetToolContext[dict[str, int]]) -> WidgetAnswer:
        return WidgetAnswer("done", [self.event("counted", {"by": 1})])


class SpeaksForOthers(Counter):
    def execute_tool(self, name: str, ctx: WidgetToolContext[dict[str, int]]) -> WidgetAnswer:
        answer = super().execute_tool(name, ctx)
        events = [WidgetEvent(widget="notebook", event="undone", data={}) for _ in answer.events]
        return WidgetAnswer(answer.text, events, answer.is_error)


class ChangesItself(Counter):
    def execute_tool(self, name: str, ctx: WidgetToolContext[dict[str, int]]) -> WidgetAnswer:
        if name == "count":
            ctx.state["count"] = 7
        return super().execute_tool(name, ctx)


class ReducesInPlace(Counter):
    def reduce(self, state: dict[str, int], entry: Entry) -> dict[str, int]:
        state.update(super().reduce(state, entry))
        return state


class ShowsAList(Counter):
    def render_live_screen(self, ctx: RenderContext[dict[str, int]]) -> Any:
        return [str(count) for count in ctx.state.values()]


class ShowsANumber(Counter):
    def render_live_screen(self, ctx: RenderContext[dict[str, int]]) -> Any:
        return dict(ctx.state)


class LooksAtTheClock(Counter):
    def render_live_screen(self, ctx: RenderContext[dict[str, int]]) -> Any:
        return {"Count": f"{ctx.state.get('count')} in {datetime.now(UTC):%Y}"}


class TellsTheTime(Counter):
    def reduce(self, state: dict[str, int], entry: Entry) -> dict[str, int]:
        return {**super().reduce(state, entry), "century": int(time.time() // 3e9)}


class RollsDice(Counter):
    def execute_tool(self, name: str, ctx: WidgetToolContext[dict[str, int]]) -> WidgetAnswer:
        answer = super().execute_tool(name, ctx)
        return WidgetAnswer(answer.text + "!" * random.randint(1, 1), answer.events, answer.is_error)


class ReadsTheEnvironment(Counter):
    def render_live_screen(self, ctx: RenderContext[dict[str, int]]) -> Any:
        return {"Count": os.environ.get("NO_SUCH_VARIABLE", "none")}


class KeepsItBeside(Counter):
    """Counts in an attribute: what it shows is in no log."""

    def __init__(self) -> None:
        self.extra = 0

    def execute_tool(self, name: str, ctx: WidgetToolContext[dict[str, int]]) -> WidgetAnswer:
        self.extra += 1
        return super().execute_tool(name, ctx)

    def render_live_screen(self, ctx: RenderContext[dict[str, int]]) -> Any:
        return {"Count": str(self.extra)}


class MindsTheOrder(Counter):
    def execute_tool(self, name: str, ctx: WidgetToolContext[dict[str, int]]) -> WidgetAnswer:
        if name != "count":
            return super().execute_tool(name, ctx)
        return WidgetAnswer("counted", [self.event("counted", {"by": 1, "keys": {"a": 1, "b": 2}})])

    def reduce(self, state: dict[str, int], entry: Entry) -> dict[str, int]:
        following = super().reduce(state, entry)
        if following is not state and isinstance(entry, WidgetEventEntry):
            following["first"] = ord(next(iter(entry.payload.data["keys"])))
        return following


class TakesEveryEvent(Counter):
    def reduce(self, state: dict[str, int], entry: Entry) -> dict[str, int]:
        if isinstance(entry, WidgetEventEntry) and entry.payload.widget == self.name:
            return {"count": state.get("count", 0) + 1}
        return state


class ChokesOnAnEvent(Counter):
    def reduce(self, state: dict[str, int], entry: Entry) -> dict[str, int]:
        if isinstance(entry, WidgetEventEntry) and entry.payload.widget == self.name:
            return {"count": int(entry.payload.data["by"])}
        return state


async def test_a_sound_one_passes() -> None:
    assert len(await check_widget(Counter)) == 11


@pytest.mark.spec("W-1", "X-5")
@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (Nameless, "it_says_what_it_is: description is ' '"),
        (TwoOfOneName, "its_tools_can_be_offered: two tools share a name"),
        (BadSchema, r"its_tools_can_be_offered: count\.by: there is no type 'int'"),
        (BadName, "its_tools_can_be_offered: .*count on"),
        (TakesAnyTool, "an_unknown_tool_is_refused: a tool it does not have was answered"),
        (SpeaksForOthers, "tools_answer_with_events.*: count made an event of widget 'notebook'"),
        (ChangesItself, "tools_answer_with_events.*: count changed the state itself"),
        (ReducesInPlace, "reduce_leaves_the_state.*: reduce changed the state it was given at entry"),
        (ShowsAList, r"the_screen_is_markdown.* is \[\], expected a dict"),
        (ShowsANumber, "the_screen_is_markdown.*the section 'count': 1"),
        (LooksAtTheClock, r"nothing_but_the_entries_counts: it calls datetime\.now"),
        (TellsTheTime, r"nothing_but_the_entries_counts: it calls time\.time"),
        (RollsDice, r"nothing_but_the_entries_counts: it calls random\."),
        (ReadsTheEnvironment, r"nothing_but_the_entries_counts: it calls os\.environ"),
        (KeepsItBeside, "replaying_the_log.*: the screen made from the stored log is another"),
        (TakesEveryEvent, "an_event_it_does_not_know_changes_nothing"),
        (ChokesOnAnEvent, "an_event_it_does_not_know_changes_nothing: KeyError came out"),
    ],
)
async def test_a_broken_one_is_named(broken: Any, found: str) -> None:
    with pytest.raises(AssertionError, match=found):
        await check_widget(broken)


async def test_the_order_of_keys_must_not_count() -> None:
    event = MindsTheOrder().event("counted", {"by": 1, "keys": {"a": 1, "b": 2}})
    with pytest.raises(AssertionError, match=r"the_order_of_keys_does_not_count: .* gives another state"):
        await check_widget(MindsTheOrder, events=[event])


async def test_arguments_that_do_not_fit_are_the_callers_mistake() -> None:
    with pytest.raises(AssertionError, match=r"do not fit count: "):
        await check_widget(Counter, calls=[("count", {"by": "one"})])
    with pytest.raises(AssertionError, match="calls name 'recount', which is none of its tools"):
        await check_widget(Counter, calls=[("recount", {})])
