"""The contract kit for widgets: run it against one of yours.

::

    print(await check_widget(MyWidget, calls=[("my_tool", {"text": "hello"})]))

It plays a session in which every tool is called and every kind of entry comes by, and looks at what the
widget makes of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, cast

from turnlog.contract import (
    Entry,
    JsonObject,
    ToolCallRequest,
    ToolSpec,
    WidgetEvent,
    encode,
    find_unjson,
    seal,
)
from turnlog.history import Session, fork
from turnlog.tools import Tool, ToolAnswer, ToolExecutor, ToolRegistry
from turnlog.widgets import RenderContext, Widget, WidgetAnswer, WidgetHost, WidgetToolContext

from ._time import FixedClock, FixedIds
from ._widget_samples import SESSION, Played, check_parameters, picture, sample, shuffled, watch_outside

MakeWidget: TypeAlias = Callable[[], Widget[Any]]
"""Makes the widget under test; called often, and every one must be like the other."""


async def check_widget(
    make_widget: MakeWidget,
    *,
    calls: Sequence[tuple[str, JsonObject]] | None = None,
    events: Sequence[WidgetEvent] = (),
) -> list[str]:
    """Run every check of the widget promise; returns their names.

    ``calls`` are (tool, arguments) to play, by default made up from the tools' schemas; ``events`` are ones
    that a host would append. Raises ``AssertionError`` that names the check and what the widget got wrong.
    """
    kit = _Kit(make_widget, calls, events)
    done: list[str] = []
    for check in kit.checks():
        name = check.__name__
        try:
            await check()
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__} came out: {error}") from error
        done.append(name)
    return done


class _Kit:
    def __init__(
        self,
        make_widget: MakeWidget,
        calls: Sequence[tuple[str, JsonObject]] | None,
        events: Sequence[WidgetEvent],
    ) -> None:
        self._make = make_widget
        self._given = calls
        self._events = events

    def checks(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            self.it_says_what_it_is,
            self.its_tools_can_be_offered,
            self.an_unknown_tool_is_refused,
            self.tools_answer_with_events_and_change_nothing,
            self.the_screen_is_markdown_by_section,
            self.reduce_leaves_the_state_it_is_given_alone,
            self.nothing_but_the_entries_counts,
            self.the_order_of_keys_does_not_count,
            self.an_event_it_does_not_know_changes_nothing,
            self.replaying_the_log_rebuilds_the_state,
            self.a_fork_forks_the_state,
        ]

    # ── what it offers ──

    async def it_says_what_it_is(self) -> None:
        one, other = self._make(), self._make()
        for what in ("name", "description"):
            text = getattr(one, what, None)
            _expect(isinstance(text, str) and bool(text.strip()), f"{what} is {text!r}, expected some words")
        _expect(one.name == other.name, f"two of it are named {one.name!r} and {other.name!r}")

    async def its_tools_can_be_offered(self) -> None:
        widget = self._make()
        specs = list(widget.tools)
        again = list(self._make().tools)
        _expect(encode(specs) == encode(again), "two of it offer different tools, or in a different order")
        names = [spec.name for spec in specs]
        _expect(len(set(names)) == len(names), f"two tools share a name: {', '.join(names)}")
        for spec in specs:
            _expect(bool(spec.description.strip()), f"tool {spec.name} has no description")
            check_parameters(spec.parameter_schema, spec.name)
            _expect(
                spec.parameter_schema.get("type") == "object",
                f"the parameters of {spec.name} are not of type object",
            )
            _tool(spec)  # refuses a name that providers refuse
        known = set(names)
        for name, arguments in self._calls():
            _expect(name in known, f"calls name {name!r}, which is none of its tools: {', '.join(names)}")
            spec = next(spec for spec in specs if spec.name == name)
            refused = _refused(spec, arguments)
            _expect(refused is None, f"the arguments {arguments} do not fit {name}: {refused}")

    async def an_unknown_tool_is_refused(self) -> None:
        widget = self._make()
        ctx = WidgetToolContext(widget.initial(), {}, "call_1", {})
        answer: Any = widget.execute_tool("no_such_tool", ctx)
        _expect(isinstance(answer, WidgetAnswer), f"execute_tool returned {answer!r}, not a WidgetAnswer")
        _expect(answer.is_error, "a tool it does not have was answered as if it had run")
        _expect(not answer.events, "a tool it does not have made events")

    async def tools_answer_with_events_and_change_nothing(self) -> None:
        played, _ = await self._play()
        name = played.widget.name
        for use in played.uses:
            answer: Any = use.answer
            _expect(isinstance(answer, WidgetAnswer), f"{use.name} returned {answer!r}, not a WidgetAnswer")
            _expect(isinstance(answer.text, str) and bool(answer.text), f"{use.name} says nothing")
            _expect(
                use.before == use.after,
                f"{use.name} changed the state itself; it must answer with an event that reduce takes in",
            )
            _expect(
                not (answer.is_error and answer.events), f"{use.name} failed and made events all the same"
            )
            for event in cast("Sequence[Any]", answer.events):
                _expect(isinstance(event, WidgetEvent), f"{use.name} made {event!r}, not a WidgetEvent")
                _expect(
                    event.widget == name,
                    f"{use.name} made an event of widget {event.widget!r}; its own is {name!r}",
                )
                problem = find_unjson(event.data)
                _expect(problem is None, f"event {event.event!r} of {use.name}: {problem}")

    # ── what it shows ──

    async def the_screen_is_markdown_by_section(self) -> None:
        _, entries = await self._play()
        widget = self._make()
        state = widget.initial()
        _check_sections(_render(widget, state), "the screen of the state it starts with")
        for entry in entries:
            state = widget.reduce(state, entry)
            before = picture(state)
            first, second = _render(widget, state), _render(widget, state)
            where = f"the screen after entry {entry.seq} ({entry.kind})"
            _check_sections(first, where)
            _expect(first == second, f"{where} differs when it is rendered again")
            _expect(picture(state) == before, f"rendering {where} changed the state")

    # ── what it is made of ──

    async def reduce_leaves_the_state_it_is_given_alone(self) -> None:
        _, entries = await self._play()
        widget = self._make()
        state = widget.initial()
        for entry in entries:
            before, body = picture(state), encode(entry)
            following = widget.reduce(state, entry)
            _expect(
                picture(state) == before,
                f"reduce changed the state it was given at entry {entry.seq} ({entry.kind}); "
                "return a new one, so that an older state can be shown again",
            )
            _expect(encode(entry) == body, f"reduce changed entry {entry.seq} ({entry.kind})")
            state = following

    async def nothing_but_the_entries_counts(self) -> None:
        _, entries = await self._play()
        first = _states(self._make(), entries)
        widget = self._make()
        with watch_outside() as reached:
            second = _states(widget, entries)
            for name, arguments in self._calls():
                ctx = WidgetToolContext(widget.initial(), arguments, "call_1", {})
                widget.execute_tool(name, ctx)
        _expect(
            not reached,
            f"it calls {', '.join(reached)}; what it shows must follow from the entries alone, or a replay "
            "shows something else: put such a thing into an event",
        )
        _same(first, second, entries, "folding the same entries again")

    async def the_order_of_keys_does_not_count(self) -> None:
        _, entries = await self._play()
        other = await Played(self._make(), self._calls(), self._events, change=shuffled).play()
        _same(
            _states(self._make(), entries),
            _states(self._make(), other),
            entries,
            "folding the same entries with the keys of their JSON in another order",
        )

    async def an_event_it_does_not_know_changes_nothing(self) -> None:
        _, entries = await self._play()
        widget = self._make()
        state = widget.initial()
        for entry in entries:
            state = widget.reduce(state, entry)
        event = widget.event("an event of a later version", {"what": 1})
        unknown = seal(
            event,
            id="entry_unknown",
            previous_id=entries[-1].id,
            previous_hash=entries[-1].hash,
            session_id=SESSION,
            seq=len(entries) + 1,
            timestamp=entries[-1].timestamp,
        ).entry
        _expect(
            picture(widget.reduce(state, unknown)) == picture(state),
            "an event with a name it does not know changed its state",
        )

    async def replaying_the_log_rebuilds_the_state(self) -> None:
        played, entries = await self._play()
        host = WidgetHost([self._make()])
        for entry in entries:
            host.step(entry)
        name = played.widget.name
        _expect(
            picture(host.state(name)) == picture(played.host.state(name)),
            "the state folded from the stored log is not the one it had while the log was written; "
            "something it keeps is not in an event",
        )
        _expect(host.screen() == played.host.screen(), "the screen made from the stored log is another one")
        _expect(host.changes() == played.host.changes(), "what is left to be shown is something else")

    async def a_fork_forks_the_state(self) -> None:
        played, entries = await self._play()
        store, middle = played.store, len(entries) // 2
        clock, ids = FixedClock(), FixedIds("f")
        await fork(store, SESSION, middle, "branch", clock=clock, ids=ids)
        shared = _states(self._make(), entries)[middle - 1]
        branch = await Session.open(store, "branch", clock=clock, ids=ids, create=False)
        _expect(
            _states(self._make(), branch.entries)[middle - 1] == shared,
            "the state where the fork begins is not the one its parent had there",
        )
        for event in self._own_events(played):
            branch.append_widget_event(event)
        await branch.commit()
        _states(self._make(), branch.entries)
        _same(
            _states(self._make(), entries),
            _states(self._make(), await store.load(SESSION)),
            entries,
            "folding the parent after the fork went on",
        )

    # ── the parts of a check ──

    def _calls(self) -> list[tuple[str, JsonObject]]:
        if self._given is not None:
            return list(self._given)
        specs = self._make().tools
        return [(spec.name, sample(spec.parameter_schema, variant)) for variant in (0, 1) for spec in specs]

    async def _play(self) -> tuple[Played, list[Entry]]:
        played = Played(self._make(), self._calls(), self._events)
        return played, await played.play()

    def _own_events(self, played: Played) -> list[WidgetEvent]:
        made = [event for use in played.uses for event in use.answer.events if not use.answer.is_error]
        return [*made, *self._events]


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def _render(widget: Widget[Any], state: Any) -> Any:
    return widget.render_live_screen(RenderContext(state, {widget.name: state}))


def _check_sections(sections: Any, where: str) -> None:
    if sections is None:
        return
    _expect(isinstance(sections, dict), f"{where} is {sections!r}, expected a dict of Markdown or None")
    for title, text in cast("dict[Any, Any]", sections).items():
        _expect(
            isinstance(title, str) and isinstance(text, str) and bool(title),
            f"{where} has the section {title!r}: {text!r}, expected a title and Markdown",
        )


def _states(widget: Widget[Any], entries: Sequence[Entry]) -> list[tuple[Any, Any]]:
    """State and screen after each entry, as plain data."""
    state = widget.initial()
    found: list[tuple[Any, Any]] = []
    for entry in entries:
        state = widget.reduce(state, entry)
        found.append((picture(state), _render(widget, state)))
    return found


def _same(
    left: list[tuple[Any, Any]], right: list[tuple[Any, Any]], entries: Sequence[Entry], what: str
) -> None:
    for entry, (state, screen), (other, other_screen) in zip(entries, left, right, strict=True):
        where = f"{what} gives another {{}} after entry {entry.seq} ({entry.kind}): {{}} and {{}}"
        _expect(screen == other_screen, where.format("screen", screen, other_screen)[:2000])
        _expect(state == other, where.format("state", state, other)[:2000])


def _tool(spec: ToolSpec) -> Tool:
    return Tool.from_schema(spec.name, spec.description, spec.parameter_schema, lambda arguments, ctx: "")


def _refused(spec: ToolSpec, arguments: JsonObject) -> str | None:
    executor = ToolExecutor(ToolRegistry([_tool(spec)]), clock=FixedClock())
    request = ToolCallRequest(
        tool_name=spec.name,
        tool_call_id="call_1",
        raw_arguments=encode(arguments).decode(),
        arguments=arguments,
    )
    checked = executor.validate(request)
    return checked.text if isinstance(checked, ToolAnswer) else None
