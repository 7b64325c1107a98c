"""The LiveScreen: what is shown when, whole or as changed lines, and again from the log."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from context.context_log import Log, call
from turnlog.contract import (
    LIVE_SCREEN,
    AgentError,
    Entry,
    Fold,
    LevelOfDetailSections,
    Message,
    ModelInputEntry,
    Secret,
    ToolOutcome,
    ToolResults,
    ToolStarted,
    WidgetEvent,
    WidgetEventEntry,
    tool_result_part,
)
from turnlog.widgets import (
    MemoryNotebookWidget,
    Notebook,
    RenderContext,
    Todo,
    TodoWidget,
    Widget,
    WidgetHost,
    Workspace,
    WorkspaceWidget,
    screen_at,
)

NOTES = MemoryNotebookWidget()


class Stand:
    """A log and a host that follow each other, as in a run."""

    def __init__(self, *widgets: Widget[Any]) -> None:
        self.log = Log()
        self.widgets = widgets or (NOTES,)
        self.host = WidgetHost(self.widgets)

    def event(self, event: WidgetEvent) -> Entry:
        return self.take(self.log.add(event))

    def take(self, entry: Entry) -> Entry:
        self.host.step(entry)
        return entry

    def redact(self, entry: Entry) -> None:
        self.log.redact(entry)
        self.host.refold(self.log.visible())

    def show(self) -> str | None:
        """What the next input says of the screen; the input is appended."""
        changes = self.host.changes()
        live = [(LIVE_SCREEN, changes)] if changes else []
        self.take(self.log.user("go on", LevelOfDetailSections(live=live, summary=[], gist=[])))
        return changes

    def fold(self) -> None:
        fold = Fold(reason="manual", tokens_before=2, tokens_after=1, items=[], screen=self.host.screen())
        self.take(self.log.add(fold))


@pytest.mark.spec("W-2")
def test_only_what_changed_since_it_was_shown_is_shown() -> None:
    stand = Stand()
    assert stand.show() is None
    stand.event(NOTES.write("gate", "opens with 7-4-1"))
    assert stand.show() == "# [Live Screen]\n\n## Notebook\n\n- **gate**: opens with 7-4-1"
    assert stand.show() is None
    stand.event(NOTES.erase("gate"))
    assert stand.show() == "# [Live Screen]\n\n## Notebook\n\n(empty)"
    assert stand.show() is None


@pytest.mark.spec("W-2")
def test_a_short_change_of_a_long_section_is_shown_as_changed_lines() -> None:
    stand = Stand()
    stand.event(NOTES.replace_all({f"note {n}": f"{n} and a good many words more" for n in range(20)}))
    stand.show()
    stand.event(NOTES.write("note 7", "-- changed"))
    assert stand.show() == (
        "# [Live Screen]\n\n## Notebook (changed lines)\n\n```diff\n@@ -8 +8 @@\n"
        "-- **note 7**: 7 and a good many words more\n+- **note 7**: -- changed\n```"
    )


@pytest.mark.spec("W-2")
def test_changed_lines_keep_lines_that_look_like_a_patchs_own() -> None:
    class Rules(Widget[str]):
        name: ClassVar[str] = "rules"
        description: ClassVar[str] = "Lines of dashes and pluses."

        def initial(self) -> str:
            return "-- one\n" + "a line that does not change, of some length\n" * 20

        def reduce(self, state: str, entry: Entry) -> str:
            return state.replace("-- one", "++ two") if isinstance(entry, WidgetEventEntry) else state

        def render_live_screen(self, ctx: RenderContext[str]) -> dict[str, str]:
            return {"Rules": ctx.state}

    stand = Stand(Rules())
    stand.show()
    stand.event(Rules().event("changed", {}))
    shown = stand.show() or ""
    assert "--- one" in shown and "+++ two" in shown and "does not change" not in shown


@pytest.mark.spec("W-2")
def test_a_change_of_half_the_section_is_shown_whole() -> None:
    stand = Stand()
    stand.event(NOTES.replace_all({"a": "one", "b": "two"}))
    stand.show()
    stand.event(NOTES.write("b", "three"))
    assert stand.show() == "# [Live Screen]\n\n## Notebook\n\n- **a**: one\n- **b**: three"


@pytest.mark.spec("W-2")
def test_widgets_come_in_the_order_they_were_registered_and_empty_ones_not_at_all() -> None:
    todo, files = TodoWidget(), WorkspaceWidget()
    stand = Stand(files, NOTES, todo)
    stand.event(todo.event("planned", {"items": [{"text": "look"}, {"text": "leap", "status": "doing"}]}))
    assert stand.host.screen() == "# [Live Screen]\n\n## Todo\n\n1. [ ] look\n2. [~] leap"
    stand.event(NOTES.write("a", "b"))
    stand.event(files.event("touched", {"path": "x.py", "action": "moved"}))
    titles = [title for title, _ in stand.host.sections()]
    assert titles == ["Files", "Notebook", "Todo"]


@pytest.mark.spec("W-2")
def test_a_fold_shows_the_whole_screen_and_one_without_a_screen_shows_nothing() -> None:
    stand = Stand()
    stand.event(NOTES.write("a", "b"))
    stand.show()
    stand.fold()
    assert stand.show() is None, "the fold itself showed it"
    stand.event(NOTES.write("c", "d"))
    stand.fold()
    assert stand.show() is None
    stand.take(stand.log.add(Fold(reason="manual", tokens_before=2, tokens_after=1, items=[])))
    assert stand.show() == stand.host.screen()


@pytest.mark.spec("W-2")
def test_the_full_screen_at_any_entry_can_be_rendered_again() -> None:
    stand = Stand()
    screens: list[str | None] = []
    for event in (NOTES.write("a", "1"), NOTES.write("b", "2"), NOTES.erase("a"), NOTES.undo()):
        screens.append(stand.host.screen())
        stand.event(event)
        screens.append(stand.host.screen())
        stand.show()
    assert len(screens) == len(stand.log.entries)
    assert [screen_at(stand.widgets, stand.log.entries, entry.seq) for entry in stand.log.entries] == screens
    assert screen_at(stand.widgets, stand.log.entries, 10**6) == stand.host.screen()


def test_two_sections_of_one_title_are_told_apart() -> None:
    class Other(MemoryNotebookWidget):
        name: ClassVar[str] = "other"

    other = Other()
    stand = Stand(NOTES, other)
    stand.event(NOTES.write("a", "1"))
    stand.event(other.write("a", "2"))
    assert stand.show() == "# [Live Screen]\n\n## Notebook\n\n- **a**: 1\n\n## Notebook\n\n- **a**: 2"
    assert stand.show() is None


@pytest.mark.spec("W-1", "E-2")
def test_two_widgets_of_one_name_are_refused() -> None:
    with pytest.raises(AgentError, match="two widgets are named 'notebook'") as caught:
        WidgetHost([MemoryNotebookWidget(), TodoWidget(), MemoryNotebookWidget()])
    assert caught.value.code == "ConfigInvalid"


@pytest.mark.spec("W-2")
def test_ctx_shows_the_other_widgets_and_cannot_be_written_to() -> None:
    class Watcher(Widget[None]):
        name: ClassVar[str] = "watcher"
        description: ClassVar[str] = "Counts the notes of another widget."

        def initial(self) -> None:
            return None

        def reduce(self, state: None, entry: Entry) -> None:
            return None

        def render_live_screen(self, ctx: RenderContext[None]) -> dict[str, str] | None:
            notes: Notebook = ctx.others["notebook"]
            with pytest.raises(TypeError):
                ctx.others["notebook"] = None  # type: ignore[index]
            with pytest.raises(AttributeError):
                ctx.state = None  # type: ignore[misc]
            return {"Watched": f"{len(notes.notes)} notes"} if notes.notes else None

    stand = Stand(Watcher(), NOTES)
    assert stand.host.screen() is None
    stand.event(NOTES.write("a", "b"))
    assert "## Watched\n\n1 notes" in (stand.host.screen() or "")


KEY = Secret("sk-that-only-this-file-uses")


class Fragile(Widget[int]):
    """Breaks on order."""

    name: ClassVar[str] = "fragile"
    description: ClassVar[str] = "Raises."

    def __init__(self, where: str) -> None:
        self.where = where

    def initial(self) -> int:
        return 0

    def reduce(self, state: int, entry: Entry) -> int:
        if self.where == "reduce" and isinstance(entry, WidgetEventEntry):
            raise ValueError(f"cannot count {object()!r}")
        return state + 1

    def render_live_screen(self, ctx: RenderContext[int]) -> Any:
        match self.where:
            case "render":
                raise ValueError(f"no ink; key {KEY.reveal()}")
            case "list":
                return ["a", "b"]
            case "number":
                return {"Count": ctx.state}
            case _:
                return {"Count": "some"}


@pytest.mark.spec("W-2", "E-3")
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("render", "ValueError: no ink; key [secret])"),
        ("list", "TypeError: render_live_screen returned a list, not a dict of Markdown"),
        ("number", "TypeError: render_live_screen returned int for section 'Count'"),
        ("reduce", "at entry 1, ValueError: cannot count <object object at 0x…>"),
    ],
)
def test_a_widget_that_breaks_says_so_on_the_screen_and_the_others_go_on(where: str, said: str) -> None:
    stand = Stand(Fragile(where), NOTES)
    stand.event(NOTES.write("a", "b"))
    shown = stand.show() or ""
    assert f"## fragile\n\n(cannot be shown: {said}" in shown
    assert "- **a**: b" in shown
    assert stand.show() is None, "it is said once, and the same when said again"


class Reader(Widget[None]):
    name: ClassVar[str] = "reader"
    description: ClassVar[str] = "Shows the last thing said."

    def initial(self) -> None:
        return None

    def reduce(self, state: None, entry: Entry) -> None:
        return None

    def render_live_screen(self, ctx: RenderContext[None]) -> dict[str, str]:
        said = [entry.payload.message.text for entry in ctx.entries if isinstance(entry, ModelInputEntry)]
        newest = ctx.entries[-1].kind if ctx.entries else "nothing"
        assert list(ctx.entries[-2:]) == list(ctx.entries)[-2:]
        return {"Said": f"{said} {newest} {'running' if ctx.running else 'idle'}"}


@pytest.mark.spec("W-2", "H-9")
def test_a_widget_may_read_the_visible_history_and_whether_a_run_is_open() -> None:
    stand = Stand(Reader())
    assert stand.host.sections() == [("Said", "[] nothing idle")]
    stand.take(stand.log.run())
    secret = stand.take(stand.log.user("the password is hunter2"))
    assert stand.host.sections() == [("Said", "['the password is hunter2'] model_input running")]
    stand.redact(secret)
    assert stand.host.sections() == [("Said", "['[redacted]'] redaction running")]


@pytest.mark.spec("H-9", "W-1")
def test_a_redacted_event_is_taken_out_of_the_state_and_the_screen_is_shown_anew() -> None:
    stand = Stand()
    stand.event(NOTES.write("keep", "this"))
    secret = stand.event(NOTES.write("secret", "hunter2"))
    assert "hunter2" in (stand.show() or "")
    stand.redact(secret)
    assert stand.show() == "# [Live Screen]\n\n## Notebook\n\n- **keep**: this"
    visible = stand.log.visible()
    everywhere = [screen_at(stand.widgets, visible, entry.seq) for entry in visible]
    assert not any("hunter2" in (screen or "") for screen in everywhere)


@pytest.mark.spec("H-9", "W-1")
def test_redacting_the_answer_that_made_a_note_takes_the_note_out() -> None:
    stand = Stand()
    answer = stand.take(stand.log.output(call("c1", "notebook_write", text="hunter2")))
    stand.event(NOTES.event("written", {"name": "secret", "text": "hunter2"}, "c1"))
    stand.take(stand.log.results(c1="noted"))
    assert stand.host.screen() is not None
    stand.redact(answer)
    assert stand.host.screen() is None


# ── the three that are built in ──


@pytest.mark.spec("W-4")
def test_every_edit_of_the_notebook_can_be_undone_in_turn() -> None:
    stand = Stand()
    edits = [
        NOTES.write("a", "1"),
        NOTES.write("b", "2"),
        NOTES.write("a", "3"),
        NOTES.erase("b"),
        NOTES.replace_all({"c": "4", "a": "5"}),
    ]
    seen: list[tuple[tuple[str, str], ...]] = []
    for edit in edits:
        seen.append(stand.host.state("notebook").notes)
        stand.event(edit)
    assert stand.host.state("notebook").notes == (("c", "4"), ("a", "5"))
    for notes in reversed(seen):
        stand.event(NOTES.undo())
        assert stand.host.state("notebook").notes == notes
    stand.event(NOTES.undo())
    assert stand.host.state("notebook").notes == ()


@pytest.mark.spec("W-4")
def test_an_edit_that_changes_nothing_is_nothing_to_undo() -> None:
    stand = Stand()
    stand.event(NOTES.write("a", "1"))
    stand.event(NOTES.write("a", "1"))
    stand.event(NOTES.erase("no such note"))
    stand.event(NOTES.undo())
    assert stand.host.state("notebook").notes == ()


def test_a_note_of_several_lines_stays_one_item() -> None:
    stand = Stand()
    stand.event(NOTES.write("two\nlines", "first\n## Todo\nlast"))
    assert stand.host.screen() == (
        "# [Live Screen]\n\n## Notebook\n\n- **two lines**: first\n  ## Todo\n  last"
    )


@pytest.mark.spec("W-3", "W-4")
def test_tools_of_the_notebook_answer_in_words_a_model_can_act_on() -> None:
    host = WidgetHost([NOTES])
    erased = host.execute(NOTES, "notebook_erase", {"name": "x"}, "c1")
    assert erased.is_error and erased.text == "no note 'x'; notes: none"
    undone = host.execute(NOTES, "notebook_undo", {}, "c2")
    assert undone.is_error and undone.text == "nothing to undo"
    written = host.execute(NOTES, "notebook_write", {"name": "x", "text": "y"}, "c3")
    assert not written.is_error
    assert [event.tool_call_id for event in written.events] == ["c3"]


@pytest.mark.spec("W-4")
def test_a_step_that_is_planned_again_keeps_its_status() -> None:
    todo = TodoWidget()
    stand = Stand(todo)
    stand.event(todo.event("planned", {"items": [{"text": "look"}, {"text": "leap"}]}))
    stand.event(todo.event("marked", {"number": 1, "status": "done"}))
    stand.event(todo.event("planned", {"items": [{"text": "look"}, {"text": "leap", "status": "dropped"}]}))
    assert stand.host.state("todo") == (Todo("look", "done"), Todo("leap", "dropped"))
    missing = stand.host.execute(todo, "todo_mark", {"number": 3, "status": "done"}, "c1")
    assert missing.is_error and missing.text == "there is no step 3; the list has 2"


@pytest.mark.spec("W-4")
def test_the_workspace_lists_what_tools_really_touched() -> None:
    stand = Stand(WorkspaceWidget())
    log = stand.log
    calls = [
        call("c1", "read_file", path="a.py"),
        call("c2", "edit", path="b.py"),
        call("c3", "write", path="c.py"),
        call("c4", "grep", path="d.py"),
    ]
    stand.take(log.output(*calls))
    changed = {"path": "other.py"}  # by a human who approved it
    stand.take(
        log.add(
            ToolStarted(
                tool_call_id="c2", tool_name="edit", idempotency_key="k", args_digest="", arguments=changed
            )
        )
    )
    stand.take(log.results(c1="text", c2="done", c4="found"))
    assert stand.host.state("workspace").files == (("a.py", "read"), ("other.py", "edited"))
    failed = ToolOutcome(tool_call_id="c3", tool_name="write", status="failed")
    message = Message(run_id="", role="tool", parts=[tool_result_part("c3", "disk full")], timestamp="")
    stand.take(log.add(ToolResults(message=message, outcomes=[failed])))
    stand.take(log.output(call("c5", "edit", path="a.py")))
    stand.take(log.results(c5="done"))
    assert stand.host.state("workspace") == Workspace((("other.py", "edited"), ("a.py", "edited")))


def test_a_long_workspace_shows_the_newest() -> None:
    files = WorkspaceWidget()
    stand = Stand(files)
    for n in range(60):
        stand.event(files.event("touched", {"path": f"{n}.py"}))
    lines = (stand.host.screen() or "").splitlines()
    assert lines[4] == "- … and 20 before"
    assert lines[-1] == "- 59.py (touched)" and len(lines) == 45
