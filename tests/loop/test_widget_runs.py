"""Widgets and hints over whole runs: what the model sees of them at every call, and what hosts change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, ClassVar

import pytest

from loop.context_stage import SMALL, ContextStage, shown
from loop.scenarios import SESSION, MortalStore, call, die_at
from turnlog import tool
from turnlog.contract import HINTS, LIVE_SCREEN, AgentError, Entry, ToolSpec, try_get_section
from turnlog.history import Session, visible_entries
from turnlog.loop import compact_session, fork_session, replay
from turnlog.testing import FixedIds, Turn
from turnlog.tools import ToolContext
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

NOTES = MemoryNotebookWidget()


def note(n: int) -> dict[str, Any]:
    return call("notebook_write", name=f"fact {n}", text=f"the code of door {n} is {n * 7919}")


def fact(n: int) -> str:
    return f"the code of door {n} is {n * 7919}"


async def screens_of(stage: ContextStage) -> list[str]:
    """The LiveScreen sections as they are in the log, in order."""
    found: list[str | None] = []
    for entry in await stage.entries():
        if entry.kind == "model_input" and entry.payload.sections:
            found.append(try_get_section(entry.payload.sections.live, LIVE_SCREEN))
        elif entry.kind == "tool_results":
            found += [
                try_get_section(outcome.sections.live, LIVE_SCREEN)
                for outcome in entry.payload.outcomes
                if outcome.sections
            ]
        elif entry.kind == "fold":
            found.append(entry.payload.screen)
    return [screen for screen in found if screen is not None]


# ── what the model sees ──


@pytest.mark.spec("W-2", "W-4", "C-3", "C-7")
async def test_facts_stay_in_every_request_over_many_folds_and_the_wire_only_grows() -> None:
    stage = ContextStage()
    turns: list[Any] = []
    for n in range(12):
        plan = [{"text": f"hall {hall}"} for hall in range(n + 1)]
        turns += [
            Turn(tool_calls=[note(n), call("stock", hall=n)]),
            Turn(tool_calls=[call("todo_plan", items=plan), call("stock", hall=n + 100)]),
            f"Hall {n} is counted.",
        ]
    agent = stage.play(turns, widgets=[NOTES, TodoWidget()])
    for n in range(12):
        await agent.run(f"Hall {n}, please.", session=SESSION, runtime_hints={"shift": n // 3})
    entries = await stage.check()
    assert sum(entry.kind == "fold" for entry in entries) >= 5
    for number, request in enumerate(stage.model.requests):
        noted = (number + 2) // 3
        text = shown(request)
        missing = [n for n in range(noted) if fact(n) not in text]
        assert not missing, f"request {number + 1} lacks {missing}"
        assert f'{{\\"shift\\":{number // 3 // 3}}}' in text
    latest = screen_at([NOTES, TodoWidget()], entries, entries[-1].seq)
    assert latest is not None and all(fact(n) in latest for n in range(12)) and "12. [ ] hall 11" in latest


@pytest.mark.spec("W-2", "W-3")
async def test_the_screen_goes_with_the_entry_that_closes_the_last_open_call() -> None:
    stage = ContextStage()
    agent = stage.play([Turn(tool_calls=[note(1), call("stock", hall=1), note(2)]), "Done."], widgets=[NOTES])
    await agent.run("Go.", session=SESSION)
    results = [e.payload.outcomes[0] for e in await stage.entries() if e.kind == "tool_results"]
    assert [bool(outcome.sections.live) for outcome in results] == [False, False, True]
    (screen,) = await screens_of(stage)
    assert screen == f"# [Live Screen]\n\n## Notebook\n\n- **fact 1**: {fact(1)}\n- **fact 2**: {fact(2)}"
    assert [outcome.status for outcome in results] == ["success"] * 3
    names = [spec.name for spec in stage.model.requests[0].tool_specs]
    assert names[:4] == ["stock", "notebook_write", "notebook_erase", "notebook_undo"]
    assert names[4:] == ["recall", "read_artifact"], "offered from the first call on"
    await stage.check()


@pytest.mark.spec("W-4")
async def test_the_model_undoes_its_own_edit() -> None:
    stage = ContextStage()
    undo = Turn(tool_calls=[call("notebook_undo")])
    agent = stage.play(
        [Turn(tool_calls=[note(1)]), Turn(tool_calls=[note(2)]), undo, undo, undo, "Nothing left."],
        widgets=[NOTES],
    )
    await agent.run("Go.", session=SESSION)
    entries = await stage.check()
    events = [e.payload.event for e in entries if e.kind == "widget_event"]
    assert events == ["written", "written", "undone", "undone"]
    last = [e.payload for e in entries if e.kind == "tool_results"][-1]
    assert last.outcomes[0].status == "failed"
    assert last.message.tool_results[0].payload.content == "nothing to undo"
    assert (await screens_of(stage))[-1] == "# [Live Screen]\n\n## Notebook\n\n(empty)"


@pytest.mark.spec("W-4", "H-11")
@pytest.mark.parametrize("widgets", [[WorkspaceWidget(), TodoWidget(), NOTES], [WorkspaceWidget()], []])
async def test_a_replay_knows_which_widgets_a_run_had(widgets: list[Any]) -> None:
    stage = ContextStage()

    @tool(timeout=None)
    async def read_file(path: str) -> str:
        """Read a file."""
        return f"text of {path}"

    turns: list[Any] = [Turn(tool_calls=[call("read_file", path=f"{n}.py")]) for n in range(3)]
    agent = stage.play([*turns, "Read."], tools=[read_file], widgets=widgets)
    await agent.run("Read.", session=SESSION)
    screens = await screens_of(stage)
    assert ("- 0.py (read)" in "".join(screens)) == bool(widgets)
    await stage.check()


@pytest.mark.spec("W-1", "H-7")
async def test_a_fork_has_the_notes_of_its_time() -> None:
    stage = ContextStage()
    agent = stage.play(
        [Turn(tool_calls=[note(1)]), "One.", Turn(tool_calls=[note(2)]), "Two."], widgets=[NOTES]
    )
    await agent.run("First.", session=SESSION)
    at = (await stage.entries())[-1].seq
    await agent.run("Second.", session=SESSION)
    name = await fork_session(stage.store, SESSION, at=at, clock=stage.clock, ids=stage.ids)
    stage.then(Turn(tool_calls=[note(3)]), "Three.")
    await agent.run("Third.", session=name)
    notes = screen_at([NOTES], await stage.entries(name), 10**6) or ""
    assert fact(1) in notes and fact(3) in notes and fact(2) not in notes
    assert fact(3) not in (screen_at([NOTES], await stage.entries(), 10**6) or "")
    assert (await replay(stage.store, name)).identical


class Gauge(Widget[int]):
    """A widget of a user's own: counts answers, and breaks at the third."""

    name: ClassVar[str] = "gauge"
    description: ClassVar[str] = "Counts answers."

    @property
    def tools(self) -> Sequence[ToolSpec]:
        return (ToolSpec(name="gauge_read", description="Read it.", parameter_schema={"type": "object"}),)

    def initial(self) -> int:
        return 0

    def reduce(self, state: int, entry: Entry) -> int:
        return state + (entry.kind == "model_output")

    def render_live_screen(self, ctx: RenderContext[int]) -> dict[str, str] | None:
        if ctx.state == 3:
            raise RuntimeError(f"the needle broke at {object()!r}")
        return {"Gauge": f"{ctx.state} answers"}

    def execute_tool(self, name: str, ctx: WidgetToolContext[int]) -> WidgetAnswer:
        raise ValueError("stuck")


@pytest.mark.spec("W-2", "E-2")
async def test_a_widget_that_raises_is_named_on_the_screen_and_the_run_goes_on() -> None:
    stage = ContextStage()
    turns = [*[Turn(tool_calls=[call("gauge_read")]) for _ in range(4)], "Enough."]
    agent = stage.play(turns, widgets=[Gauge(), NOTES])
    result = await agent.run("Go.", session=SESSION)
    assert result.text == "Enough."
    said = "## gauge\n\n(cannot be shown: RuntimeError: the needle broke at <object object at 0x…>)"
    assert any(said in screen for screen in await screens_of(stage)), "it is in the log"
    assert any("the needle broke" in shown(request) for request in stage.model.requests)
    assert "4 answers" in (await screens_of(stage))[-1], "and back when it can be shown again"
    results = [
        e.payload.message.tool_results[0].payload for e in await stage.entries() if e.kind == "tool_results"
    ]
    assert all(result.is_error and "stuck" in result.content for result in results)
    await stage.check(widgets=[Gauge()])
    with pytest.raises(AgentError, match="recorded with the widget 'gauge', which is not known here"):
        await replay(stage.store, SESSION)


@pytest.mark.spec("W-1", "E-2")
def test_two_widgets_of_one_name_are_refused_when_the_agent_is_made() -> None:
    with pytest.raises(AgentError, match="notebook"):
        ContextStage().play([], widgets=[NOTES, MemoryNotebookWidget()])


@pytest.mark.spec("H-9")
async def test_a_redacted_note_is_gone_from_every_later_request_and_view() -> None:
    stage = ContextStage()
    agent = stage.play(
        [Turn(tool_calls=[note(1)]), Turn(tool_calls=[note(2)]), "Noted.", "Still."], widgets=[NOTES]
    )
    await agent.run("Go.", session=SESSION)
    entries = await stage.entries()
    answer = next(entry for entry in entries if entry.kind == "model_output")
    session = await Session.open(stage.store, SESSION, clock=stage.clock, ids=stage.ids, create=False)
    session.redact([answer.id], "a code", "the user")
    await session.commit()
    await agent.run("Well?", session=SESSION)
    text = shown(stage.model.requests[-1])
    assert fact(1) not in text and fact(2) in text
    seen = "".join(str(entry.payload) for entry in visible_entries(await stage.entries()))
    assert fact(1) not in seen and fact(2) in seen
    await stage.check()


@pytest.mark.spec("W-2")
async def test_a_fold_by_hand_shows_widgets_of_the_users_own_again() -> None:
    """Whoever folds may not know them: then the next entry shows them."""
    stage = ContextStage()
    turns = [*[Turn(tool_calls=[call("stock", hall=n)]) for n in range(2)], "Two.", "Still two."]
    agent = stage.play(turns, widgets=[Gauge(), NOTES])
    await agent.update_notebook(SESSION, {"fact": fact(1)})
    await agent.run("Go.", session=SESSION)
    appended = await compact_session(stage.store, SESSION, options=SMALL, clock=stage.clock, ids=stage.ids)
    assert [entry.kind for entry in appended] == ["fold"]
    assert fact(1) in appended[0].payload.screen and "answers" not in appended[0].payload.screen
    await agent.run("Well?", session=SESSION)
    assert fact(1) in shown(stage.model.requests[-1])
    assert "(cannot be shown: RuntimeError" in (await screens_of(stage))[-1]
    await stage.check(widgets=[Gauge()])


# ── hosts ──


@pytest.mark.spec("W-4")
async def test_a_host_edits_the_notebook_before_between_and_after_runs() -> None:
    stage = ContextStage()
    agent = stage.play(["One.", "Two.", "Three."], widgets=[NOTES])
    entry = await agent.update_notebook(SESSION, {"fact": fact(1)})
    assert entry is not None and entry.kind == "widget_event" and entry.run_id is None
    await agent.run("First.", session=SESSION)
    assert fact(1) in shown(stage.model.requests[0])
    await agent.append_widget_event(SESSION, NOTES.write("more", fact(2)))
    await agent.run("Second.", session=SESSION)
    assert fact(2) in shown(stage.model.requests[1])
    await agent.append_widget_event(SESSION, NOTES.undo())
    await agent.run("Third.", session=SESSION)
    assert (await screens_of(stage))[-1].endswith(f"- **fact**: {fact(1)}")
    await stage.check()


@pytest.mark.spec("W-4")
async def test_an_edit_while_a_run_is_going_enters_through_the_run() -> None:
    stage = ContextStage()

    @tool(timeout=None)
    async def look(ctx: ToolContext) -> str:
        """Look, and have the host write down what is seen."""
        assert await agent.append_widget_event(ctx.session_id, NOTES.write("seen", fact(1))) is None
        return "seen"

    agent = stage.play(
        [Turn(tool_calls=[call("look")]), Turn(tool_calls=[call("look")]), "Done."],
        tools=[look],
        widgets=[NOTES],
    )
    async with aclosing(agent.run_stream("Go.", session=SESSION)) as events:
        async for event in events:
            if event.kind == "assistant_message" and event.message.text == "Done.":
                assert await agent.update_notebook(SESSION, {"last": fact(2)}) is None
            if event.kind == "run_ended":
                # The session is free by then: the event is written at once.
                assert await agent.append_widget_event(SESSION, NOTES.write("after", fact(3))) is not None
    assert fact(1) in shown(stage.model.requests[1]), "before the very next call"
    entries = await stage.check()
    kinds = [entry.kind for entry in entries]
    assert kinds[-3:] == ["widget_event", "run_ended", "widget_event"] and entries[-1].run_id is None
    assert kinds.count("widget_event") == 4
    notes = screen_at([NOTES], entries, 10**6) or ""
    assert fact(2) in notes and fact(3) in notes and fact(1) not in notes


@pytest.mark.spec("W-4", "L-7")
async def test_an_edit_told_to_a_run_that_is_aborted_is_not_lost() -> None:
    stage = ContextStage()
    agent = stage.play(["A long answer that nobody waits for.", "Here."], widgets=[NOTES])
    async with aclosing(agent.run_stream("Go.", session=SESSION)) as events:
        async for event in events:
            if event.kind == "model_call":
                await agent.update_notebook(SESSION, {"fact": fact(1)})
                break
    entries = await stage.entries()
    assert [entry.kind for entry in entries[-2:]] == ["run_ended", "widget_event"]
    await agent.run("And?", session=SESSION)
    assert fact(1) in shown(stage.model.requests[-1])
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("W-4", "A-2")
async def test_an_edit_while_a_run_waits_for_a_human() -> None:
    stage = ContextStage()

    @tool(requires_approval=True, timeout=None)
    async def send(text: str) -> str:
        """Send."""
        return f"sent {text}"

    agent = stage.play([Turn(tool_calls=[call("send", text="hi")]), "Sent."], tools=[send], widgets=[NOTES])
    await agent.run("Send it.", session=SESSION)
    entry = await agent.update_notebook(SESSION, {"fact": fact(1)})
    assert entry is not None
    asked = next(e for e in await stage.entries() if e.kind == "approval_requested")
    await agent.decide(SESSION, asked.payload.tool_call_id, "approve", by="carol")
    result = await agent.resume(SESSION)
    assert result is not None and result.text == "Sent."
    assert fact(1) in shown(stage.model.requests[-1])
    await stage.check()


@pytest.mark.spec("W-4", "E-2")
async def test_an_edit_that_cannot_be_made_says_why() -> None:
    stage = ContextStage()
    agent = stage.play([Turn(tool_calls=[call("stock", hall=1)]), "Done."], widgets=[TodoWidget()])
    with pytest.raises(AgentError, match="has no notebook; give it widgets="):
        await agent.update_notebook(SESSION, {})
    with pytest.raises(AgentError, match="no widget 'notebook'; its widgets: todo"):
        await agent.append_widget_event(SESSION, NOTES.undo())
    with pytest.raises(AgentError, match="event 'planned' of widget 'todo': the number nan"):
        await agent.append_widget_event(SESSION, TodoWidget().event("planned", {"items": float("nan")}))
    await die_at(agent, "tool_started", "Go.")
    elsewhere = ContextStage(store=stage.store, clock=stage.clock, ids=FixedIds("b")).play(
        [], widgets=[TodoWidget()]
    )
    with pytest.raises(AgentError, match="is open in session s1 and not driven here") as caught:
        await elsewhere.append_widget_event(SESSION, TodoWidget().event("planned", {"items": []}))
    assert caught.value.code == "SessionBusy"


@pytest.mark.spec("W-4", "L-8")
async def test_an_edit_that_the_store_refuses_is_in_no_state() -> None:
    stage = ContextStage()
    agent = stage.play(["One.", "Two."], widgets=[NOTES])
    await agent.run("Go.", session=SESSION)
    assert isinstance(stage.store, MortalStore)
    stage.store.dead = True
    with pytest.raises(AgentError, match="the process is dead"):
        await agent.update_notebook(SESSION, {"fact": fact(1)})
    stage.store.dead = False
    await agent.run("And?", session=SESSION)
    assert fact(1) not in shown(stage.model.requests[-1])
    await stage.check()


async def test_edits_at_once_are_all_written() -> None:
    stage = ContextStage()
    agent = stage.play(["Done."], widgets=[NOTES])
    await asyncio.gather(
        *(agent.append_widget_event(SESSION, NOTES.write(f"n{n}", fact(n))) for n in range(5))
    )
    await agent.run("Go.", session=SESSION)
    assert all(fact(n) in shown(stage.model.requests[0]) for n in range(5))
    await stage.check()


# ── hints ──


def hints_in(entries: list[Entry]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for entry in entries:
        sections = []
        if entry.kind == "model_input":
            sections = [entry.payload.sections]
        elif entry.kind == "tool_results":
            sections = [outcome.sections for outcome in entry.payload.outcomes]
        for each in sections:
            if each and (text := try_get_section(each.live, HINTS)) is not None:
                found.append((entry.kind, text))
    return found


@pytest.mark.spec("C-7")
async def test_hints_enter_when_they_change_and_stay() -> None:
    stage = ContextStage()
    agent = stage.play(["One.", "Two.", "Three.", "Four.", "Five."])
    for hints in ({"branch": "main"}, {"branch": "main"}, None, {"branch": "dev"}, {}):
        await agent.run("Go.", session=SESSION, runtime_hints=hints)
    entries = await stage.check()
    assert hints_in(entries) == [
        ("model_input", '{"branch":"main"}'),
        ("model_input", '{"branch":"dev"}'),
        ("model_input", "{}"),
    ]
    assert all('{\\"branch\\":\\"main\\"}' in shown(request) for request in stage.model.requests)
    assert "# [Hints]" in shown(stage.model.requests[0])


@pytest.mark.spec("C-7")
async def test_hints_are_in_every_request_after_a_fold_too() -> None:
    stage = ContextStage()
    turns: list[Any] = [Turn(tool_calls=[call("stock", hall=n)]) for n in range(12)]
    agent = stage.play([*turns, "Done.", "More."])
    await agent.run("Count.", session=SESSION, runtime_hints={"quota": "3 left"})
    await agent.run("And now?", session=SESSION)
    entries = await stage.check()
    assert sum(entry.kind == "fold" for entry in entries) >= 3
    for request in stage.model.requests:
        assert shown(request).count("quota") == 1, "there, and once"


@pytest.mark.spec("C-7")
async def test_runtime_data_is_part_of_the_prefix_and_written_once() -> None:
    stage = ContextStage()
    agent = stage.play(["One.", "Two.", "Three."])
    data = {"cwd": "/work", "platform": "linux"}
    for given in (data, dict(data), None):
        await agent.run("Go.", session=SESSION, runtime_data=given)
    assert [e.kind for e in await stage.entries()].count("runtime_init") == 1
    prompts = {request.system_prompt for request in stage.model.requests}
    assert prompts == {'You count crates.\n\n# [Runtime]\n\n{"cwd":"/work","platform":"linux"}'}
    await stage.check()
